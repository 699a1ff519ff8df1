#!/usr/bin/env python3
"""Speak to the Sync door of a Holdfast in offline mode, as a browser would.

    try-sync.py TOKEN METHOD PATH [BODY]

TOKEN is what `holdfast sync token ACCOUNT` prints; PATH is what follows
/1.5/UID, such as /info/collections or /storage/bookmarks/abc. Prints the status
and the body. TRY_SYNC_URL says where the server is; it is http://127.0.0.1:8000
if unset.
"""
import base64, hashlib, hmac, json, os, secrets, sys, time
import urllib.error, urllib.parse, urllib.request

SERVER = os.environ.get("TRY_SYNC_URL", "http://127.0.0.1:8000")


def send(method, url, headers, body=None):
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()
    except urllib.error.URLError as failure:
        sys.exit(f"{url}: {failure.reason}")


def credentials(token):
    """Trade the access token for the address of the storage and a Hawk key."""
    # A browser derives the client state, behind the dash, from the user's password.
    headers = {"Authorization": "Bearer " + token, "X-KeyID": "1-qqo"}
    status, text = send("GET", SERVER + "/1.0/sync/1.5", headers)
    if status != 200:
        sys.exit(f"the token server answers {status}: {text}")
    return json.loads(text)


def hawk(grant, method, url):
    """Sign one request."""
    u = urllib.parse.urlsplit(url)
    ts, nonce = str(int(time.time())), secrets.token_urlsafe(6)
    port = str(u.port or {"https": 443, "http": 80}[u.scheme])
    target = u.path + ("?" + u.query if u.query else "")
    text = "\n".join(["hawk.1.header", ts, nonce, method, target, u.hostname, port, "", "", ""])
    mac = hmac.new(grant["key"].encode(), text.encode(), hashlib.sha256).digest()
    return f'Hawk id="{grant["id"]}", ts="{ts}", nonce="{nonce}", mac="{base64.b64encode(mac).decode()}"'


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    token, method, path = sys.argv[1:4]
    body = sys.argv[4].encode() if len(sys.argv) == 5 else None
    grant = credentials(token)
    url = grant["api_endpoint"] + path
    headers = {"Authorization": hawk(grant, method, url), "Content-Type": "application/json"}
    print(*send(method, url, headers, body), sep="\n")


main()
