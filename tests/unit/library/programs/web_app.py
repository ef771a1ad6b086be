"""A web application queues a welcome mail in a request: once for each address."""

from collections.abc import AsyncIterator
from email.message import EmailMessage

from aiohttp import web

from postroad import Mail, MailQueue, errors, open_queue

QUEUE = web.AppKey("queue", MailQueue)


async def signup(request: web.Request) -> web.Response:
    email, message = str((await request.post())["email"]), EmailMessage()
    message.set_content("Welcome!")
    try:
        mail = Mail("bounce@shop.example", [email], message)
        queued = await request.app[QUEUE].enqueue(mail, key=f"welcome:{email}")
    except errors.PostroadError as error:
        return web.Response(status=503 if error.transient else 400, text=str(error))
    return web.Response(text=str(queued))


def made(url: str) -> web.Application:
    async def queue_of(app: web.Application) -> AsyncIterator[None]:
        async with open_queue(url, create=True) as app[QUEUE]:
            yield

    app = web.Application()
    app.cleanup_ctx.append(queue_of)
    app.router.add_post("/signup", signup)
    return app
