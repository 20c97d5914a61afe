"""Fetches a model's folder from the Hugging Face hub, or finds it in the hub client's own cache.

Takes configuration, tokenizer and safetensors from the top of a repository; never pickles. Which host is asked, with
which token and cache, are the hub client's usual settings (HF_ENDPOINT, HF_TOKEN, HF_HOME).
"""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelLoadError

_WANTED = ["*.json", "*.safetensors", "tokenizer.model*", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*"]  # other formats' folders; Mistral's second copy of the weights


def fetch(model: str, revision: str | None) -> Path:
    """The local folder of the model `owner/name` at `revision`. Raises `ModelLoadError`."""
    # The client takes a third of a second to import, and local models do without it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f"{model} at revision {revision}" if revision else model
    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except HFValidationError:
        raise ModelLoadError(f"{model}: no such file or folder, and not a Hugging Face id (owner/name)") from None
    except GatedRepoError:
        raise ModelLoadError(f"{at}: the hub wants an accepted licence and a token (HF_TOKEN) for this model") from None
    except RevisionNotFoundError:
        raise ModelLoadError(f"{at}: the hub has no such revision") from None
    except RepositoryNotFoundError:
        raise ModelLoadError(f"{at}: no such file or folder, and the hub has no such model, or it is private") from None
    except LocalEntryNotFoundError:
        raise ModelLoadError(
            f"{at}: there is no such folder, the hub cannot be reached, and the model is not in the local cache"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise ModelLoadError(f"{at}: download failed: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
