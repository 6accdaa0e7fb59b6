"""ImageSegmenter on small pictures, so that an answer has a few pixels only."""

from torchvision import transforms
from ts.torch_handler.image_segmenter import ImageSegmenter


class SmallSegmenter(ImageSegmenter):
    image_processing = transforms.Compose([transforms.Resize((4, 4)), transforms.ToTensor()])
