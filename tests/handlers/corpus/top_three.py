"""ImageClassifier that is told in model-config.yaml how many classes to name."""

from ts.torch_handler.image_classifier import ImageClassifier


class TopThree(ImageClassifier):
    def initialize(self, context):
        super().initialize(context)
        self.set_max_result_classes(context.model_yaml_config["handler"]["top_k"])
