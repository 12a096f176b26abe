"""Make the lake's bucket if it is not there: ``python infra/make_bucket.py``, settings as ever."""

import s3fs

from scene_pipeline.settings import load_settings

settings = load_settings()
bucket = settings.lake.removeprefix("s3://").partition("/")[0]
files = s3fs.S3FileSystem(
    key=settings.s3.access_key.get_secret_value(),
    secret=settings.s3.secret_key.get_secret_value(),
    endpoint_url=settings.s3.endpoint,
    client_kwargs={"region_name": settings.s3.region},
)
if not files.exists(bucket):
    files.call_s3("create_bucket", Bucket=bucket)
print(f"bucket {bucket} is there")
