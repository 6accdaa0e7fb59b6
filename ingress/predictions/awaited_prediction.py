"""A prediction whose door waits for the answer, and sends it itself: under other WSGI servers."""

import asyncio

from ingress.http1.exchange import Answer, Body, Content, Header
from ingress.predictions.http_prediction import HttpPrediction, HttpPredictions
from ingress.predictions.streamed_answer import StreamedAnswer
from ingress.torchserve.routes import Target


async def answer_prediction(
    shared: HttpPredictions,
    target: Target,
    headers: dict[str, str],
    body: Content,
    *,
    query: str = "",
    base_url: str = "",
) -> Answer | StreamedAnswer:
    """Returns the one answer to a prediction; errors are answers too.

    Args:
        shared: what all predictions have in common.
        target: what the path names.
        headers: names in lower case.
        body: whole and within `max_request_size`.
        query: the query string.
        base_url: of the server as this client sees it.
    """
    prediction = _AwaitedPrediction(shared, target, headers, query, base_url)
    prediction.begin(body)
    del body
    try:
        return await prediction.answered
    except asyncio.CancelledError:
        prediction.leave()
        raise


class _AwaitedPrediction(HttpPrediction):
    def __init__(
        self,
        shared: HttpPredictions,
        target: Target,
        headers: dict[str, str],
        query: str,
        base_url: str,
    ) -> None:
        super().__init__(shared, target, headers, query, self._keep)
        self._base_url = base_url
        self.answered: asyncio.Future[Answer | StreamedAnswer]
        self.answered = asyncio.get_running_loop().create_future()

    def base_url(self) -> str:
        return self._base_url

    def _keep(self, status: int, headers: list[Header], body: Body) -> None:
        if not self.answered.done():
            self.answered.set_result(Answer(status, headers, body))

    async def send_stream(self, answer: StreamedAnswer) -> None:
        self.answered.set_result(answer)
