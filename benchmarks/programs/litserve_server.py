import litserve as ls
import torch


class LinearAPI(ls.LitAPI):
    def setup(self, device):
        self.model = torch.nn.Linear(4, 2).eval().to(device)
        self.device = device

    def decode_request(self, request):
        return request["input"]

    @torch.inference_mode()
    def predict(self, batch):
        rows = torch.tensor(batch, dtype=torch.float32, device=self.device)
        return self.model(rows).tolist()


if __name__ == "__main__":
    server = ls.LitServer(LinearAPI(max_batch_size=32, batch_timeout=0.01), accelerator="auto")
    server.run(port=8000)
