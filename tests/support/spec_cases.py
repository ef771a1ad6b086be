"""Specs that make no sense, and what the refusal must say.

The same table is held against the CRDs in an API server and against the models in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Spec = dict[str, Any]

RABBITMQ: Spec = {"url": "amqp://rabbitmq:5672/%2F", "secretRef": {"name": "rabbitmq"}}
CASSANDRA: Spec = {"contactPoints": ["cassandra"], "keyspace": "k", "tls": {"mode": "Disabled"}}
OWN_CA: Spec = {"tls": {"caRef": {"name": "ours"}}}


@dataclass(frozen=True)
class Case:
    """Fields of a spec; a refusal names the field or says why. None: accepted."""

    spec: Spec
    said: str | None = None

    def __str__(self) -> str:
        return str(self.spec)


NO_URLS = (
    "https://id\u00a0.example",
    "https://id.example/\u2028",
    "https://h:443:5",
    "https://h/%zz",
    "https://u:p@h/",
    "https://:443",
    "HTTPS://h/",
)
NOT_LOOPBACK = (
    "http://127.999.1.1",
    "http://127.01.1.1",
    "http://LOCALHOST/",
    "http://[0:0:0:0:0:0:0:1]/",
    "http://[::ffff:127.0.0.1]",
)
WEBHOOK = {"url": "https://app.example.org/mail", "secretRef": {"name": "webhook"}}
LOGIN = {"secretRef": {"name": "relay-login"}}
DKIM = {"name": "dkim", "key": "s.pem"}
RELAY: Spec = {"name": "smtp", "role": "relay", "port": 2525, "from": ["10.0.0.0/8"]}
CERTIFICATE: Spec = {"certRef": {"name": "intake-tls"}}
NAMED: Spec = CERTIFICATE | {"names": ["*.a.example"]}
TLS: Spec = {"certificates": [CERTIFICATE]}
SUBMISSION: Spec = {"name": "submission", "role": "submission", "port": 587, "tls": TLS}
CLIENTS: Spec = {"caRef": {"name": "clients"}, "names": ["*.a.example"]}
CERTIFIED: Spec = {
    "name": "certified",
    "role": "relay",
    "port": 2526,
    "tls": TLS | {"clients": CLIENTS},
}
HTTP: Spec = {"name": "http", "role": "http", "port": 8025, "tls": TLS | {"mode": "Implicit"}}
MX: Spec = {"name": "mx", "role": "mx", "port": 25}
VERP: Spec = {"verpSecret": {"secretRef": {"name": "verp", "key": "secret"}}}
USERS: Spec = {"secretRef": {"name": "users", "key": "users.yaml"}}
OIDC: Spec = {"issuer": "https://id.example", "audience": "postroad"}
DOMAINS: list[Spec] = [{"name": "a.example"}]


def _relay(**relay: Any) -> Spec:
    return {"workers": {"handler": {"relay": {"host": "h"} | relay}}}


def _console(**oidc: Any) -> Spec:
    return {"console": {"oidc": {"clientId": "console"} | oidc}}


def _handler(**handler: Any) -> Spec:
    return {"workers": {"handler": handler}}


def _delivery(**delivery: Any) -> Spec:
    return {"workers": {"handler": {"mx": {}}}, "delivery": delivery}


HOOK: dict[str, Any] = {
    "name": "crm",
    "webhook": "https://crm.example/hook",
    "secret": {"secretRef": {"name": "crm", "key": "webhook"}},
    "kinds": ["Delivered", "Failed"],
    "domains": ["example.net"],
    "addresses": "Hashed",
}
FILE_STREAM: dict[str, Any] = {"name": "audit", "file": "/var/log/events.jsonl"}


def _events(*streams: dict[str, Any]) -> dict[str, Any]:
    return _delivery(events=list(streams))


def _rule(**rule: Any) -> Spec:
    return _delivery(routing={"rules": [{"name": "r"} | rule]})


POSTGRESQL = "jdbc:postgresql://db/lakes"


def _catalog(**fields: object) -> dict[str, object]:
    return {"pipeline": {"catalog": fields}}


CLIENT = {"secretRef": {"name": "catalog"}}


def _tokens(url: str) -> dict[str, object]:
    properties = {"oauth2-server-uri": url}
    return _catalog(type="REST", uri="https://c.example", login=CLIENT, properties=properties)


def _hop(**hop: Any) -> Spec:
    return _rule(hops=[{"host": "relay.example"} | hop])


def _key(**key: Any) -> Spec:
    return _delivery(
        signing=[{"domain": "a.example", "keys": [{"selector": "s", "secretRef": DKIM} | key]}]
    )


def _intake(**intake: Any) -> Spec:
    return {"intake": {"listeners": [RELAY]} | intake}


def _listener(**listener: Any) -> Spec:
    return _intake(listeners=[RELAY | listener], users=USERS, domains=DOMAINS)


MILTER: Spec = {"name": "rspamd", "milter": "inet:rspamd:11332"}
SLOW_FILTERS: list[Spec] = [MILTER | {"name": each, "timeout": "5m"} for each in ("a", "b")]
HOOK_FILTER: Spec = {
    "name": "hook",
    "http": "https://hook.mail:8443/check",
    "secret": {"secretRef": {"name": "hook", "key": "secrets"}},
    "tls": {"caRef": {"kind": "ConfigMap", "name": "ours"}},
}


def _filters(*filters: Spec) -> Spec:
    return _intake(filters=list(filters))


def _asked(**hop: Any) -> Spec:
    recipients = {"callAhead": hop}
    return _intake(domains=[{"name": "a.example", "recipients": recipients, "backup": True}])


def _certificates(*certificates: Spec) -> Spec:
    return _listener(tls={"certificates": [*certificates]})


def _bounces(**intake: Any) -> Spec:
    return _intake(**{"listeners": [MX], "bounces": VERP} | intake)


def _submission(**intake: Any) -> Spec:
    return _intake(**{"listeners": [SUBMISSION], "users": USERS} | intake)


def _pod(**pod: Any) -> Spec:
    return {"workers": {"handler": {"mx": {}}, "pod": pod}}


def _autoscaling(**autoscaling: Any) -> Spec:
    return {"workers": {"handler": {"mx": {}}, "autoscaling": autoscaling}}


def _service(**service: Any) -> Spec:
    return _intake(service=service)


def _cassandra(**tls: Any) -> Spec:
    return {"cassandra": CASSANDRA | {"tls": tls}}


def _retry(*lanes: str, max_age: str = "1h") -> Spec:
    return {"retry": {"lanes": list(lanes), "maxAge": max_age}}


MAIL_QUEUES = (
    Case({"view": {"sliceWindow": "0s"}}, "at least 1s"),
    Case({"view": {"sliceWindow": "500ms"}}, "sliceWindow"),
    Case({"view": {"sliceWindow": "1.5h"}}, "sliceWindow"),
    Case({"view": {"sliceWindow": "1m1h"}}, "sliceWindow"),
    Case({"view": {"sliceWindow": ""}}, "sliceWindow"),
    Case({"view": {"sliceWindow": "-1h"}}, "sliceWindow"),
    Case({"view": {"sliceWindow": 3600}}, "sliceWindow"),
    Case({"view": {"bucketCount": 0}}, "bucketCount"),
    Case({"view": {"updateBrowseStartPace": 0}}, "updateBrowseStartPace"),
    Case({"broker": {"deliveryLimit": 0}}, "deliveryLimit"),
    Case(_retry(), "lanes"),
    Case(_retry("0s"), "at least 1s"),
    Case({"retry": {"maxAge": "0s"}}, "at least 1s"),
    Case({"retry": {"deadLetterLifetime": "0s"}}, "at least 1s"),
    Case(_retry("1m", "2h"), "a lane cannot be longer than maxAge"),
    Case({"retry": {"maxAge": "2h"}}, "a lane cannot be longer than maxAge"),
    Case(_retry("1m", "5m", "60s"), "lanes must differ"),
    Case(_retry("1m", "1h")),
    Case(_retry("1h", max_age="60m")),
    Case({"workers": {}}, "handler"),
    Case({"workers": {"handler": {}}}, "name one handler: relay or mx or webhook or function"),
    Case({"workers": {"handler": {"mx": {}}}}),
    Case(_autoscaling(maxReplicas=1)),
    Case(_autoscaling(maxReplicas=9, minReplicas=0, oldestMail="1m", scaleDownAfter="1h")),
    Case(_autoscaling(minReplicas=1), "maxReplicas"),
    Case(_autoscaling(maxReplicas=0), "maxReplicas"),
    Case(_autoscaling(maxReplicas=3, minReplicas=4), "minReplicas must not be greater"),
    Case(_autoscaling(maxReplicas=3, mailsPerWorker=0), "mailsPerWorker"),
    Case(_autoscaling(maxReplicas=3, oldestMail="59s"), "at least 1m"),
    Case(_autoscaling(maxReplicas=3, scaleDownAfter="0s"), "at least 1m"),
    Case(_handler(webhook=WEBHOOK)),
    Case(_handler(webhook=WEBHOOK | {"url": "http://app:8080/mail?a=b", "timeout": "10m"})),
    Case(_handler(webhook=WEBHOOK | {"tls": {"caRef": {"name": "ours"}}, "largestBytes": 65536})),
    Case(_handler(webhook=WEBHOOK | {"url": "ftp://app/mail"}), "url"),
    Case(_handler(webhook=WEBHOOK | {"url": "https://a:b@app/mail"}), "url"),
    Case(_handler(webhook=WEBHOOK | {"url": "https://app/mail#x"}), "url"),
    Case(_handler(webhook=WEBHOOK | {"url": "https:///mail"}), "url"),
    Case(_handler(webhook=WEBHOOK | {"url": "https://app:0/"}), "port must be between"),
    Case(_handler(webhook=WEBHOOK | {"timeout": "11m"}), "timeout must be from 1s to 10m"),
    Case(_handler(webhook=WEBHOOK | {"timeout": "0s"}), "timeout must be from 1s to 10m"),
    Case(_handler(webhook=WEBHOOK | {"largestBytes": 52428801}), "largestBytes"),
    Case(_handler(webhook={"url": "https://app/mail"}), "secretRef"),
    Case(_handler(function={"name": "app.mail:deliver"})),
    Case(_handler(function={"name": "app:Handler.deliver", "timeout": "5s"})),
    Case(_handler(function={"name": "app.mail"}), "name"),
    Case(_handler(function={"name": "app..mail:deliver"}), "name"),
    Case(_handler(function={"name": "app:f", "timeout": "1h"}), "timeout must be from 1s to 10m"),
    Case(_handler(function={"name": "app:f"}, mx={}), "name one handler"),
    Case(
        {"workers": {"handler": {"mx": {}, "relay": {"host": "h"}}}},
        "name one handler: relay or mx or webhook or function",
    ),
    Case(_relay(tls="Required"), "tls"),
    Case(_relay(tls={"mode": "required"}), "tls.mode"),
    Case(_relay(tls={"mode": "Encrypted"})),
    Case(_relay(tls={"mode": "Implicit"})),
    Case(_relay(tls={"mode": "Implicit"}, port=465)),
    Case(_relay(tls={"mode": "Implicit"}, port=25), "port 25 has no implicit TLS"),
    Case(_relay(tls={"mode": "Required"}, port=25)),
    Case(_relay(tls={"mode": "Required", "caRef": {"name": "ours"}})),
    Case(_relay(tls={"mode": "Implicit", "caRef": {"name": "ours", "kind": "ConfigMap"}})),
    Case(_relay(tls={"caRef": {"name": "ours"}}), "caRef goes with mode Required or Implicit"),
    Case(
        _relay(tls={"mode": "None", "caRef": {"name": "ours"}}),
        "caRef goes with mode Required or Implicit",
    ),
    Case(_relay(tls={"mode": "Required", "caRef": {"name": "ours", "kind": "File"}}), "kind"),
    Case(_relay(login=LOGIN), "login goes with tls.mode Required or Implicit"),
    Case(
        _relay(login=LOGIN, tls={"mode": "None"}), "login goes with tls.mode Required or Implicit"
    ),
    Case(_relay(login=LOGIN, tls={"mode": "Required"})),
    Case(_relay(login=LOGIN | {"mechanism": "XOAUTH2"}, tls={"mode": "Implicit"})),
    Case(_relay(login=LOGIN | {"unverified": True})),
    Case(_relay(login=LOGIN | {"mechanism": "CRAM-MD5"}, tls={"mode": "Required"}), "mechanism"),
    Case(_relay(login={}, tls={"mode": "Required"}), "give either secretRef"),
    Case(_relay(port=0), "port"),
    Case(_relay(port=65536), "port"),
    Case(_relay(host=""), "host"),
    Case(_relay(host="smtp.example.org 25"), "host"),
    Case(_relay(host=" smtp.example.org"), "host"),
    Case(_relay(host="smtp.example.org\n"), "host"),
    Case(_relay(host="smtp.example.org:25"), "host"),
    Case(_relay(host="https://smtp.example.org"), "host"),
    Case(_relay(host="-smtp"), "host"),
    Case(_relay(host="smtp-1.example.org.")),
    Case(_relay(host="192.0.2.1")),
    Case(_relay(host="2001:db8::25")),
    Case(_relay(protocol="LMTP", port=24)),
    Case(_relay(protocol="lmtp"), "protocol"),
    Case(_handler(relay={"socket": "/run/lmtp/lmtp.sock"})),
    Case(_handler(relay={"socket": "/run/lmtp/lmtp.sock", "tls": {"mode": "None"}})),
    Case(_handler(relay={"socket": "run/lmtp.sock"}), "socket"),
    Case(
        _relay(
            lookUp="MX", host="relay.example", tls={"minVersion": "TLS13"}, verp=True, chunking=True
        )
    ),
    Case(_relay(source={"addresses": ["192.0.2.1"]})),
    Case(_relay(tls={"mode": "Required", "caFile": "/run/ca.crt"})),
    Case(_relay(tls={"caFile": "/run/ca.crt"}), "caRef goes with mode Required or Implicit"),
    Case(
        _relay(tls={"mode": "Required", "caFile": "/ca", "caRef": {"name": "a"}}),
        "give either caRef",
    ),
    Case(_hop(tls={"mode": "Required", "caRef": {"name": "ours"}})),
    Case(_hop(tls={"caRef": {"name": "ours"}}), "caRef goes with mode Required or Implicit"),
    Case(_hop(tls={"mode": "Implicit"}, port=25), "port 25 has no implicit TLS"),
    Case(_handler(relay={}), "give either host or socket"),
    Case(_relay(socket="/run/lmtp.sock"), "give either host or socket"),
    Case(_handler(relay={"socket": "/s", "port": 24}), "no port, no TLS and no login"),
    Case(
        _handler(relay={"socket": "/s", "tls": {"mode": "Encrypted"}}),
        "no port, no TLS and no login",
    ),
    Case(_handler(relay={"socket": "/s", "login": LOGIN | {"unverified": True}}), "no login"),
    Case({"workers": {"replicas": -1, "handler": {"relay": {"host": "h"}}}}, "replicas"),
    Case({"intake": {}}, "listeners"),
    Case(_intake(listeners=[]), "listeners"),
    Case(_intake(listeners=[RELAY, RELAY | {"port": 25}]), "listeners"),
    Case(_intake(listeners=[RELAY, RELAY | {"name": "other"}]), "two listeners have the same port"),
    Case(_intake(listeners=[RELAY, RELAY | {"name": "other", "port": 25}])),
    Case(_listener(name="x" * 16), "name"),
    Case(_listener(name="25"), "name"),
    Case(_listener(name="a--b"), "name"),
    Case(_listener(name="a-1")),
    Case(_listener(name="health"), "health is the port of probes"),
    Case(_listener(role="Relay"), "role"),
    Case(_listener(port=0), "port"),
    Case(_listener(port=65536), "port"),
    Case(_listener(**{"from": []}), "from"),
    Case(_listener(**{"from": ["pods"]}), "from"),
    Case(_listener(**{"from": ["10.0.0.0/8,fd00::/8"]}), "from"),
    Case(_listener(**{"from": ["10.0.0.0/255.0.0.0"]}), "from"),
    Case(_listener(**{"from": ["10.0.0.0/8", "192.0.2.1", "::1", "fd00::/8"]})),
    Case(_listener(proxyFrom=["192.0.2.0/24"])),
    Case(_listener(proxyFrom=["balancer"]), "proxyFrom"),
    Case(_listener(xclientFrom=["192.0.2.0/24"])),
    Case(_listener(xclientFrom=["nginx"]), "xclientFrom"),
    Case(_submission(listeners=[HTTP | {"xclientFrom": ["::1"]}]), "`proxyFrom` is of SMTP"),
    Case(_intake(listeners=[{"name": "a", "role": "relay", "port": 25}]), "`from` is missing"),
    Case(_listener(role="mx"), "`from` is of the role relay"),
    Case(_certificates(), "certificates"),
    Case(_certificates({}), "give either certRef"),
    Case(_certificates({"certRef": {"name": "Not A Name"}}), "name"),
    Case(_certificates({"certRef": {"name": "x"}, "cert": "/x"}), "give either certRef"),
    Case(_certificates({"certRef": {"name": "x"}, "key": "/x"}), "key goes with cert"),
    Case(_certificates({"cert": "/run/x.crt", "key": "/run/x.key"})),
    Case(_certificates(CERTIFICATE, NAMED)),
    Case(_certificates(NAMED, NAMED)),
    Case(_certificates(CERTIFICATE, CERTIFICATE), "the names it is for"),
    Case(_certificates(NAMED, CERTIFICATE), "the names it is for"),
    Case(_certificates(NAMED, NAMED, CERTIFICATE | {"names": []}), "the names it is for"),
    Case(_listener(tls=TLS | {"mode": "implicit"}), "mode"),
    Case(_intake(listeners=[CERTIFIED])),
    Case(_listener(tls=TLS | {"clients": CLIENTS | {"required": True}}), "required goes with"),
    Case(_listener(tls=TLS | {"mode": "Implicit", "clients": CLIENTS | {"required": True}})),
    Case(_listener(tls=TLS | {"clients": {"names": ["a.example"]}}), "give either caRef"),
    Case(
        _submission(listeners=[HTTP | {"tls": CERTIFIED["tls"] | {"mode": "Implicit"}}]), "of SMTP"
    ),
    Case(_submission()),
    Case(_submission(users=None), "users is missing"),
    Case(
        _submission(listeners=[{k: SUBMISSION[k] for k in ("name", "role", "port")}]), "needs tls"
    ),
    Case(_submission(users={}), "file, oidc or dovecot"),
    Case(_submission(users={"secretRef": {"name": "users"}}), "key"),
    Case(_submission(users=USERS | {"file": "/run/users"}), "give one of secretRef"),
    Case(_submission(users=USERS | {"dovecot": {"socket": "/run/auth"}}), "give one of secretRef"),
    Case(_submission(users=USERS | {"oidc": OIDC})),
    Case(_submission(users={"dovecot": {"socket": "/run/auth"}})),
    Case(_submission(users={"oidc": OIDC | {"issuer": "http://id.example"}}), "write https://"),
    Case(_submission(users={"oidc": OIDC | {"issuer": "http://127.0.0.1:80/"}})),
    Case(_submission(users={"oidc": OIDC | {"issuer": "http://127.255.0.53/"}})),
    Case(_submission(users={"oidc": OIDC | {"issuer": "http://127.0.example/"}}), "write https://"),
    Case(_submission(users={"oidc": OIDC | {"issuer": "http://[::1]:80/"}})),
    Case(
        _submission(users={"oidc": OIDC | {"issuer": "http://127.0.0.1:1@id.example/"}}), "issuer"
    ),
    Case(_submission(users={"oidc": OIDC | {"issuer": "https://id.example:70000"}}), "port must"),
    *(Case(_submission(users={"oidc": OIDC | {"issuer": each}}), "issuer") for each in NO_URLS),
    *(
        Case(_submission(users={"oidc": OIDC | {"issuer": each}}), "write https://")
        for each in NOT_LOOPBACK
    ),
    Case(_submission(users={"oidc": OIDC | {"issuer": "https://id.example/%7Ea@b"}})),
    Case(_submission(users={"oidc": {"issuer": "https://id.example"}}), "audience"),
    Case(_submission(listeners=[HTTP])),
    Case(_submission(listeners=[HTTP], users=None), "users is missing"),
    Case(_submission(listeners=[HTTP | {"tls": TLS}]), "write `mode: Implicit`"),
    Case(_submission(listeners=[HTTP | {"proxyFrom": ["::1"]}]), "`proxyFrom` is of SMTP"),
    Case(
        _submission(listeners=[{"name": "http", "role": "http", "port": 8025}]),
        "the role http needs tls",
    ),
    Case(_intake(listeners=[MX], domains=DOMAINS)),
    Case(_intake(listeners=[MX]), "domains is missing"),
    Case(_intake(listeners=[MX], domains=[]), "domains is missing"),
    Case(_bounces()),
    Case(_bounces(domains=DOMAINS)),
    Case(_bounces(bounces=VERP | {"complaints": ["fbl@a.example"]})),
    Case(_bounces(bounces=VERP | {"complaints": ["fbl"]}), "complaints"),
    Case(_bounces(bounces=VERP | {"suppress": ["NoMailbox"]}), "needs delivery.suppression"),
    Case(
        _bounces(bounces=VERP | {"suppress": ["NoMailbox", "Complaint"]})
        | _delivery(suppression={})
    ),
    Case(_bounces(bounces=VERP | {"suppress": ["MailboxFull"]}), "suppress"),
    Case(_bounces(bounces={}), "verpSecret"),
    Case(_bounces(bounces={"verpSecret": {}}), "give either secretRef"),
    Case(_bounces(bounces={"verpSecret": {"file": "/run/verp"}})),
    Case(_bounces(listeners=[RELAY]), "needs a listener of role mx"),
    Case(_intake(domains=[*DOMAINS, *DOMAINS]), "domains"),
    Case(_intake(domains=[{"name": "a.example", "recipients": {}}]), "give one of secretRef"),
    Case(_intake(domains=[{"name": "a.example", "recipients": {"secretRef": DKIM}}])),
    Case(
        _intake(domains=[{"name": "a.example", "recipients": {"secretRef": DKIM, "file": "/r"}}]),
        "give one of secretRef",
    ),
    Case(_asked(host="imap.mail", tls=OWN_CA["tls"] | {"mode": "Required"}, login=LOGIN)),
    Case(_asked(host="imap.mail", lookUp="MX"), "callAhead names one server"),
    Case(_asked(host="imap.mail", socket="/s"), "give either host or socket"),
    Case(_intake(domains=[{"name": "a.example", "backup": True}]), "backup goes with"),
    Case(_intake(outbox={"size": "10Gi", "when": "First", "storageClassName": "fast"})),
    Case(_intake(outbox={"size": 0})),
    Case(_intake(outbox={}), "size"),
    Case(_bounces(outbox={"size": 0}), "reports need the servers"),
    Case(_intake(outbox={"size": "10GB"}), "size"),
    Case(_intake(outbox={"size": -1}), "size"),
    Case(_intake(outbox={"size": 0, "when": "Always"}), "when"),
    Case(_intake(outbox={"size": 0, "storageClassName": "A"}), "storageClassName"),
    Case(_filters(MILTER, HOOK_FILTER, MILTER | {"name": "own", "milter": "unix:/run/milter"})),
    Case(_filters({"name": "none"}), "give one of milter"),
    Case(_filters(MILTER | {"function": "a:b"}), "give one of milter"),
    Case(_filters({"name": "f", "function": "a.b:c"}), "an image of your own"),
    Case(_filters({"name": "f", "function": "a.b:c"}) | {"image": "mine:1"}),
    Case(_filters(MILTER, MILTER), "filters"),
    Case(_filters(MILTER | {"milter": "rspamd:11332"}), "write inet:HOST:PORT"),
    Case(_filters(MILTER | {"tls": OWN_CA["tls"]}), "tls is of http"),
    Case(_filters(MILTER | {"timeout": "6m"}), "a filter has 1s to 5m"),
    Case(_filters(MILTER | {"listeners": ["smtp"]})),
    Case(_filters(MILTER | {"listeners": ["other"]}), "names a listener that there is not"),
    Case(_filters(*SLOW_FILTERS), "longer than 8m in all"),
    Case(_filters(SLOW_FILTERS[0], SLOW_FILTERS[1] | {"timeout": "3m"})),
    Case(_filters(HOOK_FILTER | {"tls": {}}), "give either caRef"),
    Case(_filters(HOOK_FILTER | {"secret": {}}), "give either secretRef"),
    Case(_filters({"name": "hook", "http": "https://hook.mail"}), "its requests are signed"),
    Case(_filters(HOOK_FILTER | {"http": "http://hook.mail"}), "write https://"),
    Case(_filters(HOOK_FILTER | {"http": "http://localhost:a@hook.mail/"}), "http"),
    Case(_filters(HOOK_FILTER | {"http": "http://localhost?a=b@c"})),
    Case(_filters(HOOK_FILTER | {"http": "https://hook.mail:65536"}), "port must be between"),
    *(Case(_filters(HOOK_FILTER | {"http": each}), "http") for each in NO_URLS),
    *(Case(_filters(HOOK_FILTER | {"http": each}), "write https://") for each in NOT_LOOPBACK),
    *(Case(_events(HOOK | {"webhook": each}), "webhook") for each in NO_URLS),
    *(Case(_events(HOOK | {"webhook": each}), "write https://") for each in NOT_LOOPBACK),
    Case(_events(HOOK | {"webhook": "http://crm.example"}), "write https://"),
    *(Case(_handler(webhook=WEBHOOK | {"url": each}), "url") for each in NO_URLS),
    Case(_submission(rules=[{"users": ["*@a.example"], "maxSize": "25Mi", "fixUp": True}])),
    Case(_submission(rules=[{"maxSize": 65536, "tenant": "a", "senders": ["@a.example", "<>"]}])),
    Case(_submission(rules=[{"maxSize": 65535}]), "maxSize"),
    Case(_submission(rules=[{"maxSize": "25M"}]), "maxSize"),
    Case(_submission(rules=[{"maxSize": True}]), "maxSize"),
    Case(_submission(rules=[{"users": []}]), "users"),
    Case(_submission(rules=[{"perMinute": 0}]), "perMinute"),
    Case(_submission(rules=[{"perDay": 0}]), "perDay"),
    Case(_submission(rules=[{"from": ["home"]}]), "from"),
    Case(_intake(hostname="mx.example.org")),
    Case(_intake(hostname="mx"), "hostname"),
    Case(_pod(labels={"team": "mail"}, logLevel="Debug", env=[{"name": "HTTPS_PROXY"}])),
    Case(_pod(labels={"app.kubernetes.io/part-of": "shop"})),
    Case(_pod(labels={"app.kubernetes.io/name": "mine"}), "are the operator's"),
    Case(_pod(labels={"postroad.dev/job": "mine"}), "are the operator's"),
    Case(_pod(labels={"team": "x" * 64}), "team"),
    Case(_pod(annotations={"postroad.dev/configuration-hash": "1"}), "is the operator's"),
    Case(_pod(env=[{"name": "POSTROAD_QUEUE", "value": "a"}]), "are the operator's"),
    Case(_pod(logLevel="DEBUG"), "logLevel"),
    Case(_pod(nodeSelector={"disk": 1}), "disk"),
    Case(_pod(priorityClassName="Not A Name"), "priorityClassName"),
    Case(_pod(tolerations={}), "tolerations"),
    Case(_intake(pod={"env": [{"name": "POSTROAD_X"}]}), "are the operator's"),
    Case({"pipeline": {"pod": {"labels": {"postroad.dev/job": "a"}}}}, "are the operator's"),
    Case(_service()),
    Case(
        _service(
            type="LoadBalancer",
            loadBalancerClass="example.org/lb",
            externalTrafficPolicy="Local",
            sourceRanges=["192.0.2.0/24", "2001:db8::/32"],
            ipFamilies=["IPv6", "IPv4"],
            annotations={"example.org/lb": "internal"},
        )
    ),
    Case(_service(type="NodePort", externalTrafficPolicy="Local")),
    Case(_service(type="ExternalName"), "type"),
    Case(_service(type="NodePort", sourceRanges=["192.0.2.0/24"]), "set type LoadBalancer"),
    Case(_service(loadBalancerClass="example.org/lb"), "set type LoadBalancer"),
    Case(_service(externalTrafficPolicy="Local"), "set type LoadBalancer or NodePort"),
    Case(_service(type="LoadBalancer", sourceRanges=["192.0.2.1"]), "sourceRanges"),
    Case(_service(ipFamilies=["ipv4"]), "ipFamilies"),
    Case(_service(annotations={"postroad.dev/user-since": "1"}), "is the operator's"),
    Case({"serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:x"}}}),
    Case({"serviceAccount": {"name": "mail"}}),
    Case({"serviceAccount": {"name": "m", "annotations": {"a": "b"}}}, "or leave name out"),
    Case({"serviceAccount": {"name": "Mail"}}, "name"),
    Case({"serviceAccount": {"annotations": {"postroad.dev/x": "b"}}}, "is the operator's"),
    Case({"reports": {"author": "mailer-daemon@mx.example.org", "enabled": False}}),
    Case({"reports": {"author": "mailer-daemon"}}, "author"),
    Case({"reports": {"author": "a@x.example\r\nBcc: <b@y.example>"}}, "author"),
    Case({"reports": {"administrator": "Post Master <p@x.example>"}}, "administrator"),
    Case({"reports": {"delayAfter": "0s"}}, "at least 1s"),
    Case({"reports": {"largestReturnedBytes": 1048577}}, "largestReturnedBytes"),
    Case({"reports": {"perMinute": 0}}, "perMinute"),
    Case({"hostname": "mx-1.example.org"}),
    Case({"hostname": "xn--mnchen-3ya.example"}),
    Case({"hostname": "[192.0.2.1]"}),
    Case({"hostname": "[IPv6:2001:db8::1]"}),
    Case({"hostname": "mx"}, "hostname"),
    Case({"hostname": "192.0.2.1"}, "hostname"),
    Case({"hostname": "mx_1.example.org"}, "hostname"),
    Case({"hostname": "mx.example.org."}, "hostname"),
    Case({"hostname": "mx.example.org\n"}, "hostname"),
    Case({"hostname": "[2001:db8::1]"}, "hostname"),
    Case(_delivery(routing={})),
    Case({"delivery": {"routing": {}}}),
    Case(_delivery(routing={}) | _relay(), "delivery.routing goes with the handler mx"),
    Case({"delivery": {"signing": []}} | _relay()),
    Case({"delivery": {"suppression": {}}} | _relay()),
    Case(_delivery(suppression={"bounces": ["NoMailbox"], "addresses": "Hashed"})),
    Case(_delivery(suppression={"bounces": ["Content"]}), "delivery.suppression.bounces"),
    Case(_delivery(suppression={"addresses": "md5"}), "delivery.suppression.addresses"),
    Case(_delivery(suppression={"after": 1, "apart": "48h", "lifetime": "720h"})),
    Case(_delivery(suppression={"after": 0}), "delivery.suppression.after"),
    Case(_delivery(suppression={"apart": "soon"}), "delivery.suppression.apart"),
    Case(_events(HOOK, FILE_STREAM, {"name": "bus", "amqp": {"exchange": "postroad.events-x"}})),
    Case(_events(HOOK | {"file": "/x"}), "give one of webhook, file and amqp"),
    Case(_events({"name": "a"}), "give one of webhook, file and amqp"),
    Case(_events(FILE_STREAM, FILE_STREAM), "rename one"),
    Case(_events(FILE_STREAM | {"secret": HOOK["secret"]}), "a webhook has a secret"),
    Case(_events(HOOK | {"secret": {}}), "give either secretRef"),
    Case(_events(FILE_STREAM | {"kinds": ["Opened"]}), "kinds"),
    Case(_events(FILE_STREAM | {"name": "A.b"}), "name"),
    Case(_events(FILE_STREAM | {"addresses": "None", "kinds": ["Accepted", "Suppressed"]})),
    Case(_events({"name": "a", "amqp": {"exchange": "postroad.mail.out"}}), "amqp.exchange"),
    Case(_delivery(connections=[{"servers": ["*.a.example"], "perMinute": 6, "maxRecipients": 9}])),
    Case(_delivery(connections=[{"servers": ["a.example"], "perMinute": 0}]), "perMinute"),
    Case(_delivery(connections=[{"servers": ["a.example"], "maxRecipients": 1001}]), "maxRecip"),
    Case(_delivery(connections=[{"servers": ["a.example"], "timeouts": {"end": "x"}}]), "end"),
    Case(_delivery(retries=[{"servers": ["*.a.example"], "lanes": ["10m", "1h"], "maxAge": "4h"}])),
    Case(_delivery(retries=[{"domains": ["a.example"]}]), "give lanes, maxAge or both"),
    Case(_delivery(retries=[{"lanes": []}]), "lanes"),
    Case(_delivery(suspensions=[{"reason": "Rate", "code": 421, "duration": "1h"}])),
    Case(_delivery(suspensions=[{"reason": "Rate", "code": 200, "duration": "1h"}]), "code"),
    Case(_delivery(suspensions=[{"reason": "Rate"}]), "duration"),
    Case(_delivery(suspensions=[{"reason": "Slow", "duration": "1h"}]), "reason"),
    Case(_delivery(bounceRules=[{"class": "Policy", "codes": ["x.1.1", "550"], "source": "us"}])),
    Case(_delivery(bounceRules=[{"class": "Gone", "codes": ["550"], "source": "us"}]), "class"),
    Case(_delivery(bounceRules=[{"class": "Loop", "codes": ["5.1"], "source": "us"}]), "codes"),
    Case(_delivery(bounceRules=[{"class": "Loop", "source": "us"}]), "name codes, words or both"),
    Case(_delivery(bounceRules=[{"class": "Loop", "codes": ["550"]}]), "source"),
    Case(
        _delivery(routing={"mx": {"tls": {"mode": "None", "honours": ["STS"]}}}),
        "mode None never encrypts",
    ),
    Case(_delivery(routing={"mx": {"tls": {"honours": ["DNSSEC"]}}}), "honours"),
    Case(_delivery(routing={"families": []}), "families"),
    Case(_delivery(routing={"sts": {"folder": "policies"}}), "folder"),
    Case(_rule(), "give either mx"),
    Case(_rule(mx={}, hops=[{"host": "h.example"}]), "give either mx"),
    Case(_rule(mx={}, domains=[]), "domains"),
    Case(_rule(mx={}, name="a b"), "name"),
    Case(_rule(hops=[{"host": "h.example"}, {"host": "g.example", "tier": 3}])),
    Case(_rule(hops=[{"host": "h.example", "tier": 0}]), "tier"),
    Case(_rule(hops=[{"host": "h.example", "tier": 4}]), "tier"),
    Case(_rule(hops=[{"host": "h.example", "lookUp": "MX"}, {"host": "g.example", "tier": 2}])),
    Case(_rule(mx={"source": {"addresses": ["192.0.2.1", "2001:db8::1"]}})),
    Case(
        _rule(mx={"source": {"addresses": ["192.0.2.1", "192.0.2.2"]}}),
        "name one address of IPv4 and one of IPv6 at most",
    ),
    Case(_rule(mx={"source": {"addresses": ["192.0.2.1"], "ehloName": "mx"}}), "ehloName"),
    Case(_hop(tls={"mode": "Required"}, login=LOGIN)),
    Case(_hop(login=LOGIN | {"unverified": True})),
    Case(_hop(login=LOGIN), "a login goes with tls.mode Required or Implicit"),
    Case(_hop(tls={"mode": "Required"}, login={}), "give either secretRef"),
    Case(
        _hop(tls={"mode": "Required"}, login=LOGIN | {"folder": "/run/s"}), "give either secretRef"
    ),
    Case(_hop(tls={"mode": "Required"}, login={"folder": "/run/s"})),
    Case(_hop(tls={"mode": "Required"}, login={"secretRef": {}}), "secretRef"),
    Case(_hop(socket="/run/lmtp/socket"), "give either host or socket"),
    Case(_rule(hops=[{"socket": "/run/lmtp/socket"}])),
    Case(_rule(hops=[{"host": "h.example", "lookUp": "MX"}])),
    Case(
        _rule(hops=[{"host": "h.example", "lookUp": "MX"}, {"host": "g.example"}]),
        "a smart host with lookUp: MX stands alone",
    ),
    Case(_key()),
    Case(_key(file="s.pem"), "give either secretRef"),
    Case(_key(secretRef={"name": "dkim"}), "key"),
    Case(_key(secretRef=DKIM | {"key": "a/b"}), "key"),
    Case(_key(selector="a b"), "selector"),
    Case({"deletionPolicy": "Forget"}, "deletionPolicy"),
    Case({"clusterRef": {}}, "clusterRef.name"),
    Case({"pipeline": {"traffic": {}}}, "schedule"),
    Case({"pipeline": {"forget": {"schedule": "7 1 * * *"}}}, "olderThan"),
    Case({"pipeline": {"forget": {"schedule": "7 1 * * *", "olderThan": "400d"}}}, "olderThan"),
    Case(
        {"pipeline": {"forget": {"schedule": "7 1 * * *", "olderThan": "9h"}}},
        "from 24h to 239976h",
    ),
    Case({"pipeline": {"audit": {"schedule": "7 1 * * *", "repair": "perhaps"}}}, "repair"),
    Case(_catalog()),
    Case(_catalog(type="JDBC", uri=POSTGRESQL, login=CLIENT)),
    Case(_catalog(type="REST", uri="https://c.example/api", warehouse="mail", namespace="a_b")),
    Case(_catalog(type="Glue"), "type"),
    Case(_catalog(namespace="a"), "a Hadoop catalog is the lake's own folder"),
    Case(_catalog(type="REST"), "a REST catalog needs uri"),
    Case(_catalog(type="REST", uri=POSTGRESQL), "a REST catalog needs uri"),
    Case(_catalog(type="JDBC", uri="postgresql://db/lakes"), "a JDBC catalog needs uri"),
    Case(_catalog(type="JDBC", uri=f"{POSTGRESQL}?password=a"), "uri has a login"),
    Case(_catalog(type="JDBC", uri=f"{POSTGRESQL}?PassWord=a"), "uri has a login"),
    Case(
        _catalog(type="JDBC", uri=POSTGRESQL, properties={"jdbc.Password": "a"}),
        "properties has a secret",
    ),
    Case(
        _catalog(type="REST", uri="https://c.example", properties={"token": "a"}),
        "properties has a secret",
    ),
    Case(
        _catalog(
            type="REST", uri="https://c.example", properties={"token-refresh-enabled": "false"}
        )
    ),
    Case(_catalog(type="REST", uri="http://c.example")),
    Case(_catalog(type="REST", uri="http://c.example", login=CLIENT), "https:// or on loopback"),
    Case(_catalog(type="REST", uri="http://localhost", login=CLIENT)),
    Case(_catalog(type="REST", uri="http://127.0.0.2:8181", login=CLIENT)),
    Case(
        _catalog(type="REST", uri="http://localhost.c.example", login=CLIENT),
        "https:// or on loopback",
    ),
    *(Case(_tokens(each), "https:// or on loopback") for each in NOT_LOOPBACK),
    *(
        Case(_catalog(type="REST", uri=each, login=CLIENT), "https:// or on loopback")
        for each in NOT_LOOPBACK
    ),
    Case(_catalog(type="REST", uri="https://c\u00a0.example"), "uri"),
    Case(_tokens("https://id.example/tokens")),
    Case(_tokens("http://[::1]:8080/tokens")),
    Case(_tokens("http://id.example/tokens"), "https:// or on loopback"),
    Case(_tokens("http://localhost:a@id.example/tokens"), "https:// or on loopback"),
    Case(_catalog(type="REST", uri="https://c.example", login={}), "give either secretRef"),
    Case(_catalog(type="REST", uri="https://c.example", namespace="A"), "namespace"),
)

QUEUE_CLUSTERS = (
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://me:secret@rabbitmq"}}, "url"),
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://rabbitmq:65536/"}}, "port must be between"),
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://rabbitmq:0/"}}, "port must be between"),
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://rabbit mq"}}, "url"),
    Case({"rabbitmq": RABBITMQ | {"managementURL": "http://r:99999"}}, "port must be between"),
    Case({"rabbitmq": RABBITMQ | {"url": "amqps://rabbitmq", "managementURL": "https://r:65535"}}),
    Case(
        {"rabbitmq": RABBITMQ | {"url": "amqps://rabbitmq", "managementURL": "http://r:15672"}},
        "managementURL must begin with https",
    ),
    Case({"rabbitmq": RABBITMQ | {"managementURL": "https://r", "users": {}}}),
    Case({"rabbitmq": RABBITMQ | {"users": {}}}, "users needs managementURL"),
    Case(
        {"rabbitmq": RABBITMQ | {"managementURL": "https://r", "users": {"overlap": "9m"}}},
        "must be at least 10m",
    ),
    Case(
        {"rabbitmq": RABBITMQ | {"managementURL": "https://r", "users": {"period": "59m"}}},
        "must be at least 1h",
    ),
    Case({"rabbitmq": RABBITMQ | {"managementURL": "https://r"} | OWN_CA}),
    Case({"rabbitmq": RABBITMQ | {"url": "amqps://r"} | OWN_CA}),
    Case({"rabbitmq": RABBITMQ | OWN_CA}, "tls needs a server by amqps or https"),
    Case({"rabbitmq": RABBITMQ | {"managementURL": "http://r"} | OWN_CA}, "tls needs a server"),
    Case({"s3": OWN_CA}),
    Case({"s3": {"url": "https://s3"} | OWN_CA}),
    Case({"s3": {"url": "http://s3"} | OWN_CA}, "tls needs a url"),
    Case({"cassandra": {"contactPoints": ["cassandra"], "keyspace": "k"}}, "cassandra.tls"),
    Case({"cassandra": {"contactPoints": ["c"], "tls": {"mode": "Disabled"}}}, "keyspace"),
    Case(_cassandra(), "mode"),
    Case(_cassandra(mode="required"), "mode"),
    Case(_cassandra(mode="VerifyFull", serverName="nodes.example.org")),
    Case(_cassandra(mode="VerifyCA", caRef={"name": "x"}, clientCertRef={"name": "y"})),
    Case(_cassandra(mode="VerifyCA", serverName="nodes.example.org"), "serverName goes with"),
    Case(_cassandra(mode="Disabled", caRef={"name": "x"}), "another mode than Disabled"),
    Case(_cassandra(mode="Disabled", clientCertRef={"name": "x"}), "another mode than Disabled"),
    Case({"s3": {"url": "http://s3:70000"}}, "port must be between"),
    Case(_console(issuer="https://id.example:8443/a")),
    Case(_console(issuer="https://id.example:70000"), "port must be between"),
    Case(_console(issuer="https://[::1"), "issuer"),
    *(Case(_console(issuer=each), "issuer") for each in NO_URLS),
    *(Case({"s3": {"url": each}}, "url") for each in NO_URLS),
    *(Case({"rabbitmq": RABBITMQ | {"managementURL": each}}, "managementURL") for each in NO_URLS),
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://r:5672:5/"}}, "url"),
    Case({"rabbitmq": RABBITMQ | {"url": "amqp://r/%zz"}}, "url"),
    Case(_console(issuer="http://id.example"), "issuer"),
    Case({"s3": {"url": "http://[2001:db8::1]:9000"}}),
    Case({"cassandra": CASSANDRA | {"port": 65536}}, "port"),
    Case({"cassandra": CASSANDRA | {"contactPoints": ["a b"]}}, "contactPoints"),
    Case({"cassandra": CASSANDRA | {"keyspace": "system"}}, "one of Cassandra's own"),
    Case({"cassandra": CASSANDRA | {"keyspace": "system_auth"}}, "one of Cassandra's own"),
    Case({"cassandra": CASSANDRA | {"keyspace": "systematic"}}),
    Case({"cassandra": CASSANDRA | {"localDatacenter": "dc1' }"}}, "localDatacenter"),
    Case({"cassandra": CASSANDRA | {"localDatacenter": 'd"c'}}, "localDatacenter"),
    Case({"cassandra": CASSANDRA | {"localDatacenter": "us-east_1.a"}}),
    Case({"cassandra": CASSANDRA | {"rowLifetime": "59m"}}, "at least 1h"),
)

SELECTED: Spec = {"operation": "Remove", "selector": {"sender": "a@example.org"}}

TASKS = (
    Case(SELECTED),
    Case(SELECTED | {"dryRun": True, "ttlSecondsAfterFinished": 0}),
    Case(SELECTED | {"schedule": "@daily"}),
    Case(SELECTED | {"schedule": "@daily", "paused": True}),
    Case(SELECTED | {"paused": True}, "paused goes with schedule"),
    Case({"operation": "Purge", "dryRun": True}),
    Case({"operation": "Pipeline", "job": "Archive"}),
    Case({"operation": "Republish", "selector": {"olderThan": "1h"}}),
    Case({"operation": "Hold", "selector": {"all": True}}),
    Case({"operation": "purge"}, "operation"),
    Case({"operation": "Remove"}, "operation is for selected mails"),
    Case({"operation": "Hold", "selector": {}}, "all: true alone"),
    Case({"operation": "Hold", "selector": {"all": False}}, "all: true alone"),
    Case({"operation": "Hold", "selector": {"all": True, "name": "x"}}, "all: true alone"),
    Case({"operation": "Hold", "selector": {"sender": ""}}, "sender"),
    *(
        Case({"operation": "Hold", "selector": {field: address}}, said)
        for field in ("sender", "recipient")
        for address, said in (
            ("a@example.org", None),
            ("POSTMASTER", None),
            ("zoë@b@bücher.example", None),
            ('"a b"@example.org', None),
            ("spammer", "has no '@'"),
            ("@example.org", "an empty local part or domain"),
            ("a@", "an empty local part or domain"),
            ("<a@example.org>", "'<' or '>'"),
            ("a@\x7fexample.org", "a control character"),
            ("a@example.org\n", "a control character"),
            ("a b@example.org", "a space outside a quoted local part"),
            ("a@example.org ", "a space outside a quoted local part"),
        )
    ),
    Case({"operation": "Hold", "selector": {"sender": "<>"}}),
    Case({"operation": "Hold", "selector": {"recipient": "<>"}}, "has no '@'"),
    Case({"operation": "Hold", "selector": {"domain": "@example.org"}}, "a domain has no '@'"),
    Case({"operation": "Hold", "selector": {"olderThan": "1d"}}, "olderThan"),
    Case({"operation": "Hold", "selector": {"id": "1"}}, "id"),
    Case({"operation": "Hold", "selector": {"attribute": {"name": "x"}}}, "value"),
    Case({"operation": "Purge", "selector": {"all": True}}, "selector has no effect"),
    Case({"operation": "Republish", "selector": {"all": True}}, "by olderThan alone"),
    Case(
        {"operation": "Republish", "selector": {"olderThan": "1h", "name": "x"}},
        "by olderThan alone",
    ),
    Case({"operation": "Pipeline"}, "job goes with the operation Pipeline"),
    Case({"operation": "Purge", "job": "Audit"}, "job goes with the operation Pipeline"),
    Case({"operation": "Pipeline", "job": "archive"}, "job"),
    Case({"operation": "Export", "folder": "audit/2026-11/a.b_c"}),
    Case({"operation": "Purge", "folder": "audit"}, "folder goes with the operation Export"),
    *(
        Case({"operation": "Export", "folder": each}, "below the queue's exports")
        for each in (
            "/audit",
            "audit/",
            "a//b",
            "../other",
            "a/../b",
            "_audit",
            "a/.b",
            "s3a://b/c",
        )
    ),
    Case({"operation": "Export", "folder": ""}, "folder"),
    Case({"operation": "Export", "folder": "a" * 201}, "folder"),
    Case({"operation": "Maintain", "dryRun": True}, "dryRun goes with operations"),
    Case({"operation": "Rotate", "schedule": "@daily"}, "schedule does not go with Rotate"),
    Case(SELECTED | {"schedule": "@daily", "ttlSecondsAfterFinished": 9}, "never finishes"),
    Case(SELECTED | {"ttlSecondsAfterFinished": -1}, "ttlSecondsAfterFinished"),
    Case(SELECTED | {"queueRef": {"name": "A"}}, "queueRef.name"),
)
