"""A Django program: its settings name the queue, its code is as before."""

import sys

from django.conf import settings
from django.core.mail import send_mail

settings.configure(EMAIL_BACKEND="postroad.django.EmailBackend", POSTROAD_QUEUE=sys.argv[1])
print(send_mail("Welcome", "hello", "shop@example.org", ["b@example.net"]))
