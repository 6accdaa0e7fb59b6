import torch
from mosec import Server, Worker


class Linear(Worker):
    def __init__(self):
        self.model = torch.nn.Linear(4, 2).eval()

    @torch.inference_mode()
    def forward(self, data: list[list[float]]) -> list[list[float]]:
        return self.model(torch.tensor(data, dtype=torch.float32)).tolist()


if __name__ == "__main__":
    server = Server()
    server.append_worker(Linear, num=1, max_batch_size=32, max_wait_time=10)
    server.run()
