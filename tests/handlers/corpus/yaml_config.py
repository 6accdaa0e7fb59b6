"""Everything that model-config.yaml says under `handler` and beside it."""


class YamlConfig:
    def initialize(self, context):
        self.config = context.model_yaml_config

    def handle(self, data, context):
        return [self.config for _ in data]
