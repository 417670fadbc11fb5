"""Lists the operations that never succeeded in the sweep: an operation that was only refused has not been tested."""

import os
import re
import sys

import requests

# These need an identity provider, which the tests of the http crate and of the page have.
UNREACHABLE = {"sign_in_exchange"}
URL = os.environ["SERVER_URL"]
HEADERS = {"Authorization": "Bearer " + os.environ["SERVER_TOKEN"]}

document = requests.get(URL + "/openapi.json", timeout=30).json()
operations = {operation["operationId"] for methods in document["paths"].values() for operation in methods.values()}
page = requests.get(URL + "/metrics", headers=HEADERS, timeout=30).text
counted = re.findall(r'http_requests_total\{operation="(\w+)",status="(\d+)"\} (\d+)', page)
for operation in sorted(operations):
    answers = {int(status): int(count) for name, status, count in counted if name == operation}
    print(operation, *(f"{status}:{count}" for status, count in sorted(answers.items())))
    if any(status < 300 for status in answers):
        operations.discard(operation)
operations -= UNREACHABLE
if operations:
    sys.exit(f"error: never answered with a success: {', '.join(sorted(operations))}; seed it in hooks.py")
