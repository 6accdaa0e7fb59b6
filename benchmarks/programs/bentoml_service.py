import bentoml
import torch


@bentoml.service
class Linear:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 2).eval()

    @bentoml.api(batchable=True, max_batch_size=32)
    @torch.inference_mode()
    def predict(self, rows: list[list[float]]) -> list[list[float]]:
        return self.model(torch.tensor(rows)).tolist()
