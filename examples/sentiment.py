"""A model in a file: `ferry serve examples/sentiment.py`, then open http://127.0.0.1:8080."""

import torch

import ferry

LEARNED_FROM = {
    "a wonderful film": 1,
    "great fun and well played": 1,
    "moving, funny, a joy": 1,
    "i loved every minute": 1,
    "dull and far too long": 0,
    "a waste of time": 0,
    "badly played, boring": 0,
    "i left, it was awful": 0,
}
BUCKETS = 2**14


class Sentiment(ferry.Model):
    """Says whether a review is positive. It has learned from eight of them."""

    batch_size = 16
    max_batch_delay = 10  # ms
    warm_up = ["A wonderful film, and well played."]

    def load(self, device):
        torch.manual_seed(0)
        self.device = device
        self.net = torch.nn.Sequential(
            torch.nn.EmbeddingBag(BUCKETS, 256),
            torch.nn.Linear(256, 1024),
            torch.nn.ReLU(),
            torch.nn.Linear(1024, 2),
        ).to(device)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.5)
        wanted = torch.tensor(list(LEARNED_FROM.values()), device=device)
        for _ in range(100):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.scores(list(LEARNED_FROM)), wanted).backward()
            optimizer.step()

    def scores(self, texts):
        pieces = [[hash_of(word) for word in text.lower().split()] or [0] for text in texts]
        starts = [0]
        for words in pieces[:-1]:
            starts.append(starts[-1] + len(words))
        words = torch.tensor([word for one in pieces for word in one], device=self.device)
        embedded = self.net[0](words, torch.tensor(starts, device=self.device))
        return self.net[1:](embedded)

    @torch.inference_mode()
    def predict(self, texts: list[str]) -> list[dict]:
        shares = self.scores(texts).softmax(1)[:, 1].tolist()
        return [
            {"label": "POSITIVE" if share > 0.5 else "NEGATIVE", "score": round(share, 3)}
            for share in shares
        ]


def hash_of(word):
    number = 0
    for letter in word.strip(".,!?"):
        number = (31 * number + ord(letter)) % BUCKETS
    return number
