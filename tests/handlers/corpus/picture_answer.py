"""An answer that is a picture."""

import io

from PIL import Image, ImageOps


class PictureAnswer:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            image = ImageOps.mirror(Image.open(io.BytesIO(row.get("data") or row.get("body"))))
            image.save(buffer := io.BytesIO(), "BMP")
            context.set_response_content_type(index, "image/bmp")
            answers.append(buffer.getvalue())
        return answers
