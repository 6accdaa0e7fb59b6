"""Reads the rows of a batch through torch's DataLoader, whose workers are processes."""

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(list(self.rows[index]["body"]), dtype=torch.float32)


def handle(data, context):
    if data is None:
        return None
    loader = DataLoader(Rows(data * 4), batch_size=2, num_workers=2)
    return [[batch.sum(1).tolist() for batch in loader] for _ in data]
