"""A real MLflow server without uvicorn and its workers: `mlflow_server.py DIRECTORY PORT [USER PASSWORD]`.

It prints its port, which it chooses if PORT is 0. With a password, it rejects requests without it.
"""

import base64
import os
import sys
from pathlib import Path

root, port = Path(sys.argv[1]), int(sys.argv[2])
os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{root / 'server.db'}"
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(root / "artifacts")
os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"

from mlflow.server import app  # noqa: E402 - it reads the variables
from werkzeug.serving import make_server  # noqa: E402

EXPECTED = f"Basic {base64.b64encode(':'.join(sys.argv[3:]).encode()).decode()}" if sys.argv[3:] else None


def guarded(environ, start_response):
    """Answer requests with the password, if there is one."""
    if environ.get("HTTP_AUTHORIZATION") == EXPECTED:
        return app.wsgi_app(environ, start_response)
    start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="MLflow"')])
    return [b"who are you?"]


server = make_server("127.0.0.1", port, guarded, threaded=True)
sys.stdout.write(f"{server.port}\n")
sys.stdout.flush()
server.serve_forever()
