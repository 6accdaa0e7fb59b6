import torch

model = torch.nn.Linear(4, 2).eval()


@torch.inference_mode()
def predict(batch):
    return model(torch.tensor(batch, dtype=torch.float32)).tolist()
