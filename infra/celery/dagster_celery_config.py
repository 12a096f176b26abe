"""Celery's settings on a worker: broker and results are one Redis, named by the environment."""

import os

broker_url = result_backend = os.environ["CELERY_BROKER"]
# A worker takes a run when it has a place for it, and no run in advance.
worker_prefetch_multiplier = 1
# Structured logs go to standard output as they are, without Celery's own prefix.
worker_redirect_stdouts = False
