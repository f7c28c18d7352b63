"""A real MLflow server that asks for a password: `password_server.py DIRECTORY USER PASSWORD` prints its port."""

import base64
import os
import sys
from pathlib import Path

root, user, password = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{root / 'server.db'}"
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = "mlflow-artifacts:/"
os.environ["_MLFLOW_SERVER_ARTIFACT_DESTINATION"] = str(root / "artifacts")
os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"

from mlflow.server import app  # noqa: E402 - it reads the variables
from werkzeug.serving import make_server  # noqa: E402

EXPECTED = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def guarded(environ, start_response):
    """Answer those who know the password."""
    if environ.get("HTTP_AUTHORIZATION") == EXPECTED:
        return app.wsgi_app(environ, start_response)
    start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="MLflow"')])
    return [b"who are you?"]


server = make_server("127.0.0.1", 0, guarded, threaded=True)
sys.stdout.write(f"{server.port}\n")
sys.stdout.flush()
server.serve_forever()
