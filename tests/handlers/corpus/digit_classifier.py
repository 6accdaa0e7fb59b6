"""ImageClassifier with its own transforms and an answer of its own, as in the digits example."""

from torchvision import transforms
from ts.torch_handler.image_classifier import ImageClassifier


class DigitClassifier(ImageClassifier):
    image_processing = transforms.Compose(
        [
            transforms.Grayscale(3),
            transforms.Resize((8, 8)),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )

    def postprocess(self, data):
        return data.argmax(1).tolist()
