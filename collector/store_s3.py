"""S3 and what speaks its language (MinIO, Ceph, SeaweedFS, GCS interop): the only door to boto3.

Only old and universal parts of the protocol are used: single PUT or multipart, GET, HEAD, LIST v2, DELETE, path or
virtual addressing, Signature v4. Integrity is by Content-MD5, which every server checks; the newer trailing checksums
are refused by many and are sent only where a server demands them. botocore repeats what failed before an answer came;
a body that breaks off is read again here.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from collector.store import StoredObject, StoreError, StoreMissing, StoreRefused, StoreUnavailable, check_key

PART = 16 << 20
"""Bytes of one part of a multipart upload (S3: at least 5 MiB, at most 10,000 parts)."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_OPTIONS = {
    "endpoint_url", "region", "path_style", "access_key_id", "secret_access_key", "session_token", "profile",
    "connect_timeout", "read_timeout", "attempts", "part_bytes", "ca_bundle",
}  # fmt: skip
_LATER_CODES = {
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "InternalError",
    "ServiceUnavailable", "RequestTimeout", "RequestTimeTooSkewed", "OperationAborted", "BadDigest", "IncompleteBody",
    "XAmzContentSHA256Mismatch", "NoSuchUpload", "ExpiredToken",
}  # fmt: skip
"""Codes with a 4xx status that a later attempt may not see again: a clock is set, a role's token is renewed."""
_HINTS = {
    "NoSuchBucket": "create the bucket or correct the store's address",
    "InvalidAccessKeyId": "the access key is unknown to the server",
    "SignatureDoesNotMatch": "the secret key is wrong (or a proxy rewrites the request)",
    "AccessDenied": "these credentials may not do that",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: check NTP",
    "ExpiredToken": "the session token has expired",
}


class S3Store:
    """Objects of a bucket below a prefix. Clients are made lazily and may be used by many threads.

    Options: `endpoint_url`, `region` (default: AWS settings, else us-east-1), `path_style` (default: true with an
    endpoint), `profile` or `access_key_id` + `secret_access_key` (+ `session_token`; default: the AWS chain of
    environment, files and instance role), `connect_timeout` (5 s), `read_timeout` (60 s), `attempts` (5),
    `part_bytes`, `ca_bundle` (path of certificates). Raises StoreRefused for a bad bucket name or an unknown option.
    """

    def __init__(self, bucket: str, prefix: str, options: Mapping[str, Any]) -> None:
        """`prefix` without slashes at its ends, or empty."""
        if not _BUCKET.fullmatch(bucket):
            raise StoreRefused(f"{bucket!r} is no bucket name; expected s3://bucket/prefix")
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise StoreRefused(f"unknown store option(s) {', '.join(unknown)}; known: {', '.join(sorted(_OPTIONS))}")
        if prefix:
            check_key(prefix)
        self.bucket, self.prefix, self.options = bucket, f"{prefix}/" if prefix else "", dict(options)
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._client: Any = None
        self._session: Any = None
        self._bucket_seen = False

    @property
    def client(self) -> Any:
        """The boto3 client. Raises StoreRefused if boto3 is not installed or the settings are unusable."""
        if self._client is None:
            with _mapped(self.uri):
                self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise StoreRefused("s3:// needs boto3: install firstfault[s3]") from error
        o = self.options
        self._session = boto3.session.Session(
            aws_access_key_id=o.get("access_key_id"),
            aws_secret_access_key=o.get("secret_access_key"),
            aws_session_token=o.get("session_token"),
            profile_name=o.get("profile"),
            region_name=o.get("region"),
        )
        path_style = o.get("path_style", self._endpoint is not None)
        config = Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if path_style else "auto"},
            connect_timeout=float(o.get("connect_timeout", 5)),
            read_timeout=float(o.get("read_timeout", 60)),
            retries={"mode": "adaptive", "total_max_attempts": self._attempts},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=16,
        )
        return self._session.client(
            "s3",
            region_name=self._session.region_name or "us-east-1",
            endpoint_url=self._endpoint,
            verify=o.get("ca_bundle"),
            config=config,
        )

    @property
    def _endpoint(self) -> str | None:
        """The server, if it is not AWS: from the options, else where AWS's own tools look for it."""
        named = self.options.get("endpoint_url")
        return named or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None

    @property
    def _attempts(self) -> int:
        return max(1, int(self.options.get("attempts", 5)))

    def put(self, key: str, data: bytes | Path) -> None:
        """See Store. Objects above `part_bytes` go up in parts; an unfinished upload is never listed."""
        name = self.prefix + check_key(key)
        part = int(self.options.get("part_bytes", PART))
        client = self.client
        with _mapped(key):
            if isinstance(data, bytes) and len(data) <= part:
                client.put_object(Bucket=self.bucket, Key=name, Body=data, ContentMD5=_md5(data))
                return
            blocks = _blocks(data, part)
            first = next(blocks, b"")
            second = next(blocks, None)
            if second is None:
                client.put_object(Bucket=self.bucket, Key=name, Body=first, ContentMD5=_md5(first))
                return
            self._multipart(name, _chain(first, second, blocks))

    def _multipart(self, name: str, blocks: Iterator[bytes]) -> None:
        client, where = self.client, {"Bucket": self.bucket, "Key": name}
        upload = client.create_multipart_upload(**where)["UploadId"]
        try:
            parts = []
            for number, block in enumerate(blocks, 1):
                answer = client.upload_part(
                    **where, UploadId=upload, PartNumber=number, Body=block, ContentMD5=_md5(block)
                )
                parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            # if even this fails, the parts are invisible and a lifecycle rule removes them
            with suppress(Exception):
                client.abort_multipart_upload(**where, UploadId=upload)
            raise

    def get(self, key: str) -> bytes:
        """See Store."""
        name = self.prefix + check_key(key)
        client = self.client
        for left in reversed(range(self._attempts)):
            try:
                with _mapped(key):
                    answer = client.get_object(Bucket=self.bucket, Key=name)
                    data: bytes = answer["Body"].read()
                    if len(data) != answer.get("ContentLength", len(data)):
                        raise StoreUnavailable(f"{key}: the answer broke off after {len(data)} bytes")
                    return data
            except StoreUnavailable:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """See Store."""
        pages = iter(self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + prefix
        ))  # fmt: skip
        while True:
            with _mapped(prefix or self.uri):
                page = next(pages, None)
            if page is None:
                return
            self._bucket_seen = True
            for item in page.get("Contents", ()):
                key = item["Key"][len(self.prefix) :]
                if key and not key.endswith("/"):
                    etag = str(item.get("ETag") or "").strip('"')
                    yield StoredObject(key, item["Size"], item["LastModified"].timestamp(), etag)

    def exists(self, key: str) -> bool:
        """See Store. Raises StoreRefused if not even the bucket is there."""
        name = self.prefix + check_key(key)
        client = self.client
        try:
            with _mapped(key):
                client.head_object(Bucket=self.bucket, Key=name)
                return True
        except StoreMissing:
            # an answer to HEAD has no body to tell a missing object from a missing bucket
            if not self._bucket_seen:
                try:
                    with _mapped(self.uri):
                        client.head_bucket(Bucket=self.bucket)
                except StoreMissing as error:
                    raise StoreRefused(f"there is no bucket {self.bucket}: {_HINTS['NoSuchBucket']}") from error
                self._bucket_seen = True
            return False

    def delete(self, key: str) -> None:
        """See Store."""
        name = self.prefix + check_key(key)
        client = self.client
        with suppress(StoreMissing), _mapped(key):
            client.delete_object(Bucket=self.bucket, Key=name)

    def filesystem(self) -> tuple[Any, str]:
        """See Store. Arrow's own S3 client, with the credentials that boto3 found."""
        from pyarrow.fs import S3FileSystem

        assert self.client is not None
        found = self._session.get_credentials()
        settings: dict[str, Any] = {
            "region": self._session.region_name or "us-east-1",
            "connect_timeout": float(self.options.get("connect_timeout", 5)),
            "request_timeout": float(self.options.get("read_timeout", 60)),
        }
        if found is None:
            raise StoreRefused(f"{self.uri}: no credentials were found")
        frozen = found.get_frozen_credentials()
        settings.update(access_key=frozen.access_key, secret_key=frozen.secret_key, session_token=frozen.token)
        if self._endpoint is not None:
            scheme, _, place = self._endpoint.partition("://")
            settings.update(scheme=scheme, endpoint_override=place.rstrip("/"))
            settings["force_virtual_addressing"] = not self.options.get("path_style", True)
        if self.options.get("ca_bundle"):
            settings["tls_ca_file_path"] = str(self.options["ca_bundle"])
        with _mapped(self.uri):
            return S3FileSystem(**settings), f"{self.bucket}/{self.prefix}".rstrip("/")


def _md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _blocks(data: bytes | Path, size: int) -> Iterator[bytes]:
    if isinstance(data, Path):
        with data.open("rb") as file:
            while block := file.read(size):
                yield block
    else:
        for start in range(0, len(data), size):
            yield data[start : start + size]


def _chain(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield second
    yield from rest


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Turn botocore's, urllib3's and the system's errors into the store's."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        raise _translated(what, error) from error


def _translated(what: str, error: Exception) -> StoreError:
    from botocore import exceptions as known

    if isinstance(error, known.ClientError):
        return _answered(what, error)
    # a certificate or a proxy that does not fit is a setting; a connection that breaks is weather
    if isinstance(error, (known.SSLError, known.ProxyConnectionError)):
        return StoreRefused(f"{what}: {error}")
    if isinstance(error, (known.HTTPClientError, known.ConnectionError, known.CredentialRetrievalError, known.MetadataRetrievalError)):  # fmt: skip  # noqa: E501
        return StoreUnavailable(f"{what}: {error}")
    if isinstance(error, known.BotoCoreError):
        broken = isinstance(error, (known.IncompleteReadError, known.ResponseStreamingError))
        return (StoreUnavailable if broken else StoreRefused)(f"{what}: {error}")
    if isinstance(error, (ValueError, TypeError)):
        return StoreRefused(f"{what}: {error}")
    return StoreUnavailable(f"{what}: {type(error).__name__}: {error}")


def _answered(what: str, error: Any) -> StoreError:
    """The class of an error that the server itself sent."""
    answer = error.response
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
    said = answer.get("Error", {}).get("Message") or code
    text = f"{what}: {code} {said}" + (f" ({_HINTS[code]})" if code in _HINTS else "")
    if code in _LATER_CODES or status >= 500 or status in (408, 429):
        return StoreUnavailable(text)
    if code in ("NoSuchKey", "404", "NotFound"):
        return StoreMissing(f"there is no {what}")
    return StoreRefused(text)
