"""A picture and a caption in one multipart form."""

import io

from PIL import Image


class TwoInputs:
    def initialize(self, context):
        self.initialized = True

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            image = Image.open(io.BytesIO(row["image"]))
            caption = row["caption"]
            answers.append(
                {
                    "size": list(image.size),
                    "caption": bytes(caption).decode(),
                    "kinds": sorted(type(value).__name__ for value in row.values()),
                    "image_type": context.get_request_header(index, "image"),
                }
            )
        return answers
