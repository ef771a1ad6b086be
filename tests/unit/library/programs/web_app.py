"""A web application queues a welcome mail in a request: once for each address."""

from email.message import EmailMessage

from aiohttp import web

from postroad import Mail, MailQueue, errors, open_queue

QUEUE = web.AppKey("queue", MailQueue)


async def signup(request: web.Request) -> web.Response:
    email, message = str((await request.post())["email"]), EmailMessage()
    message.set_content("Welcome!")
    try:
        queued = await request.app[QUEUE].enqueue(Mail("a@b.example", [email], message), key=email)
    except errors.PostroadError as error:
        return web.Response(status=503 if error.transient else 400, text=str(error))
    return web.Response(text=str(queued))


async def made(url: str) -> web.Application:
    app = web.Application()
    app[QUEUE] = await open_queue(url, create=True)
    app.on_cleanup.append(lambda app: app[QUEUE].close())
    app.router.add_post("/signup", signup)
    return app
