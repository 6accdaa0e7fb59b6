"""Status, phrase, headers and content type of an answer."""


class StatusAndHeaders:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        for index, row in enumerate(data):
            wish = bytes(row["body"]).decode()
            if wish.isdigit():
                context.set_response_status(code=int(wish), phrase="as asked", idx=index)
            else:
                context.set_response_content_type(index, wish)
            context.set_response_header(index, "X-Corpus", "yes")
        return [b"<p>done</p>" for _ in data]
