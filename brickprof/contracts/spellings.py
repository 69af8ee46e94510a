"""How people spell the settings of a training: one name for each setting, whatever the framework calls it.

Enters: a key of a configuration, dotted or not (``optimizer.adam_beta2``, ``--learning-rate``, ``maxGradNorm``).
Leaves: its canonical name (``beta2``, ``lr``, ``batch_size``), or None where the key is none that is known here.

    canonical("train.adam_beta2")            "beta2"
    spellings("lr")                          {"lr", "learning_rate", ...}
    settings({"train.lr": "3e-4"})           {"lr": [Setting("lr", 3e-4, "train.lr", scope="train")]}
    nearest("learing_rate")                  "learning_rate"

A key is read from its end: ``checkpoint.every`` is a saving interval, ``eval.every`` is not, ``model.norm.eps`` is not
the optimizer's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

_TABLE = """
optimizer: optimizer optim optimizer_name optimizer_type optimizer_class optim_name opt optimizer_cls
lr: lr learning_rate base_lr peak_lr max_lr initial_lr lr_peak lr_max init_lr learning_rate_peak start_lr lr0
    optimizer_lr adam_lr base_learning_rate max_learning_rate peak_learning_rate initial_learning_rate
min_lr: min_lr lr_min eta_min final_lr end_lr min_learning_rate lr_end lr_final learning_rate_min lrf
    cosine_min_lr
min_lr_ratio: min_lr_ratio final_lr_ratio lr_min_ratio min_lr_rate min_lr_factor
betas: betas adam_betas optimizer_betas adamw_betas
beta1: beta1 adam_beta1 b1 beta_1 adam_b1 betas_0 adamw_beta1 optimizer_beta1
beta2: beta2 adam_beta2 b2 beta_2 adam_b2 betas_1 adamw_beta2 optimizer_beta2
eps: eps adam_eps adam_epsilon epsilon optimizer_eps adamw_eps opt_eps optim_eps
weight_decay: weight_decay wd l2_penalty l2_reg weight_decay_rate adam_weight_decay optimizer_weight_decay
    l2_regularization decay_weight weightdecay adam_wd
momentum: momentum sgd_momentum optimizer_momentum opt_momentum
nesterov: nesterov use_nesterov
grad_clip: grad_clip max_grad_norm gradient_clip clip_grad_norm gradient_clip_val gradient_clipping
    grad_clip_norm clip_norm max_norm clip_grad clip gradient_clip_norm grad_norm_clip grad_norm_max
    max_gradient_norm clip_gradients clip_grad_max_norm grad_max_norm clipping
clip_value: clip_grad_value grad_clip_value gradient_clip_value
scheduler: scheduler lr_scheduler lr_scheduler_type scheduler_type lr_schedule schedule scheduler_name sched
    lr_decay_style lr_policy schedule_type lr_scheduler_name decay_type
warmup_steps: warmup_steps warmup num_warmup_steps warmup_iters lr_warmup_steps lr_warmup_iters n_warmup_steps
    warm_up_steps warmup_updates warmup_iterations num_warmup_updates warmup_num_steps
warmup_ratio: warmup_ratio warmup_fraction warmup_proportion warmup_frac lr_warmup_fraction warmup_pct pct_start
warmup_epochs: warmup_epochs num_warmup_epochs lr_warmup_epochs warm_up_epochs
decay_steps: decay_steps lr_decay_iters lr_decay_steps t_max scheduler_steps num_training_steps schedule_steps
    total_num_steps scheduler_total_steps lr_decay_samples cosine_steps
lr_gamma: lr_gamma scheduler_gamma lr_decay_rate lr_decay_factor lr_decay
lr_step_size: lr_step_size scheduler_step_size step_size
max_steps: max_steps train_steps training_steps num_steps total_steps max_iters num_iters num_iterations
    iterations max_train_steps num_train_steps steps max_iterations total_iters train_iters n_steps max_updates
    max_update iters num_updates total_updates n_iters train_iterations stop_step
epochs: epochs num_epochs num_train_epochs max_epochs n_epochs epoch train_epochs nepochs num_epoch total_epochs
samples: num_samples n_samples train_samples dataset_size num_train_samples num_sequences n_sequences train_size
    num_examples num_train_examples train_examples sequences n_train num_train
tokens: max_tokens_total total_tokens train_tokens num_tokens token_budget training_tokens
batch_size: batch_size bs batch train_batch_size per_device_train_batch_size micro_batch_size microbatch_size
    device_batch_size local_batch_size batchsize micro_batch per_gpu_train_batch_size mini_batch_size
    minibatch_size train_micro_batch_size_per_gpu micro_bsz train_bs
global_batch_size: global_batch_size effective_batch_size total_batch_size global_bs
eval_batch_size: eval_batch_size per_device_eval_batch_size val_batch_size test_batch_size valid_batch_size
    validation_batch_size
accumulation: gradient_accumulation_steps accum grad_accum accumulation accumulation_steps
    grad_accumulation_steps accumulate_grad_batches accum_steps gradient_accumulation grad_accum_steps ga
    ga_steps update_freq accum_iter grad_accumulation num_accumulation_steps iters_to_accumulate grad_acc_steps
    grad_acc accumulate
seq_len: seq_len sequence_length seq_length max_seq_len block_size context_length max_seq_length context n_ctx
    max_sequence_length seqlen model_max_length max_length ctx_len context_size bptt length
save_every: save_steps checkpoint_every save_every save_interval checkpoint_interval ckpt_interval ckpt_every
    checkpoint_steps save_freq save_frequency checkpoint_freq checkpoint_frequency save_every_n_steps ckpt_freq
    checkpointing_steps every_n_train_steps save_iters checkpoint_every_n_steps save_interval_steps saving_steps
save_every_epochs: save_every_n_epochs save_epochs checkpoint_every_epochs save_every_epochs checkpoint_epochs
save_strategy: save_strategy
save_limit: save_total_limit keep_last max_checkpoints keep_checkpoints save_top_k
eval_every: eval_steps eval_every eval_interval validate_every val_interval val_every evaluation_interval
    eval_freq val_check_interval val_freq validation_interval eval_frequency evaluate_every eval_every_n_steps
    valid_every validation_steps_interval evaluation_steps test_every validation_every test_interval
    eval_step_interval
eval_every_epochs: eval_every_n_epochs eval_every_epochs check_val_every_n_epoch eval_epochs
eval_batches: eval_iters eval_batches val_batches limit_val_batches max_eval_batches val_iters val_steps
eval_strategy: eval_strategy evaluation_strategy
log_every: logging_steps log_every log_interval log_every_n_steps print_every log_freq report_every log_steps
    print_freq logging_interval log_frequency print_interval
patience: patience early_stopping_patience early_stop_patience es_patience
early_stopping: early_stopping early_stop use_early_stopping
seed: seed random_seed manual_seed rng_seed global_seed train_seed
dtype: dtype precision torch_dtype mixed_precision param_dtype compute_dtype amp_dtype
amp: amp use_amp fp16_amp autocast
fp16: fp16 use_fp16 half half_precision
bf16: bf16 use_bf16 bfloat16
loss_scale: loss_scale initial_scale init_scale loss_scaling
deterministic: deterministic use_deterministic_algorithms determinism
shuffle: shuffle shuffle_data shuffle_train data_shuffle
drop_last: drop_last dataloader_drop_last
workers: num_workers workers dataloader_num_workers n_workers
world_size: world_size num_gpus n_gpu ngpu num_devices n_gpus num_processes nproc_per_node dp_size
    data_parallel_size num_replicas
resume: resume resume_from resume_from_checkpoint resume_path load_checkpoint checkpoint_path init_from
    ckpt_path resume_checkpoint
output: output_dir out_dir save_dir checkpoint_dir ckpt_dir log_dir logging_dir run_dir out output save_path
compile: compile torch_compile use_compile
gradient_checkpointing: gradient_checkpointing activation_checkpointing checkpoint_activations
    grad_checkpointing
ema_decay: ema_decay ema ema_rate ema_beta ema_momentum
label_smoothing: label_smoothing label_smoothing_factor smoothing
dropout: dropout dropout_rate p_dropout drop_rate dropout_p hidden_dropout attention_dropout hidden_dropout_prob
    attn_dropout resid_pdrop attn_pdrop embd_pdrop attention_probs_dropout_prob
tie_weights: tie_weights tie_word_embeddings tie_embeddings tied_embeddings weight_tying tied share_embeddings
    tie_head tied_head share_input_output_embeddings
vocab_size: vocab_size n_vocab vocab num_tokens_vocab vocabulary_size vocabulary
classes: num_classes n_classes num_labels classes n_class num_class
width: hidden_size d_model n_embd hidden_dim dim width embed_dim model_dim embedding_dim hidden emb_dim d_hidden
layers: n_layer num_layers n_layers num_hidden_layers layers depth num_blocks n_blocks
heads: n_head num_heads n_heads num_attention_heads heads nhead
kv_heads: n_kv_heads num_key_value_heads kv_heads n_kv_head num_kv_heads
mlp_width: intermediate_size ffn_dim d_ff mlp_dim ff_dim dim_feedforward ffn_hidden_size
parameters: num_parameters n_params parameters num_params model_parameters model_params
"""


def _rows(table: str) -> dict[str, tuple[str, ...]]:
    """Rows of ``name: words``; a row goes on where the next line is indented."""
    rows = table.strip().replace("\n    ", " ").splitlines()
    return {name: tuple(words.split()) for name, _, words in (row.partition(":") for row in rows)}


GROUPS = _rows(_TABLE)
"""Canonical name to its spellings, the commonest first."""

_PARENT_FIRST = {
    "scheduler": {
        "name": "scheduler", "type": "scheduler", "kind": "scheduler", "class": "scheduler", "cls": "scheduler",
        "warmup": "warmup_steps", "steps": "decay_steps", "total_steps": "decay_steps", "max_steps": "decay_steps",
        "horizon": "decay_steps", "gamma": "lr_gamma", "peak": "lr", "min": "min_lr", "ratio": "warmup_ratio",
    },
    "warmup_steps": {
        "steps": "warmup_steps", "iters": "warmup_steps", "ratio": "warmup_ratio", "epochs": "warmup_epochs",
    },
    "optimizer": {
        "name": "optimizer", "type": "optimizer", "kind": "optimizer", "class": "optimizer", "cls": "optimizer",
        "clip": "grad_clip", "decay": "weight_decay",
    },
    "save_every": {
        "every": "save_every", "interval": "save_every", "steps": "save_every", "freq": "save_every", "dir": "output",
        "frequency": "save_every", "epochs": "save_every_epochs", "every_n_epochs": "save_every_epochs",
        "every_n_steps": "save_every", "save_interval": "save_every",
    },
    "eval_every": {
        "every": "eval_every", "interval": "eval_every", "steps": "eval_every", "freq": "eval_every",
        "frequency": "eval_every", "epochs": "eval_every_epochs", "batch_size": "eval_batch_size",
        "batches": "eval_batches", "iters": "eval_batches", "every_n_epochs": "eval_every_epochs",
        "every_n_steps": "eval_every",
    },
    "log_every": {"every": "log_every", "interval": "log_every", "steps": "log_every", "freq": "log_every"},
    "early_stopping": {"patience": "patience", "enabled": "early_stopping"},
    "grad_clip": {"norm": "grad_clip", "max_norm": "grad_clip", "value": "clip_value", "max": "grad_clip"},
    "accumulation": {"steps": "accumulation"},
    "data": {"size": "samples", "samples": "samples", "sequences": "samples"},
    "ema_decay": {"decay": "ema_decay", "rate": "ema_decay", "momentum": "ema_decay"},
}  # fmt: skip
"""What a short word means under a certain parent."""
_PARENTS = _rows("""
scheduler: scheduler lr_scheduler schedule sched lr_schedule
warmup_steps: warmup warm_up
optimizer: optimizer optim opt adam adamw sgd
save_every: checkpoint checkpoints checkpointing ckpt save saving
eval_every: eval evaluation validation val valid test
log_every: log logging logger report
early_stopping: early_stopping early_stop
grad_clip: clip clipping grad_clip gradient_clipping gradient_clip
accumulation: accumulation gradient_accumulation accumulate
data: data dataset dataloader
ema_decay: ema
""")
_OF_THE_MODEL = frozenset(
    {"model", "net", "network", "arch", "norm", "layernorm", "rmsnorm", "bn", "batchnorm", "encoder", "decoder"}
)
_NOT_OF_A_MODEL = frozenset({"eps", "momentum", "batch_size", "max_steps", "epochs", "shuffle", "warmup_steps"})
"""Under ``model.`` these words speak of something else: ``model.norm.eps``, ``model.bn.momentum``."""

_CANONICAL = {spelling: name for name, listed in GROUPS.items() for spelling in listed}
_PARENT = {word: group for group, words in _PARENTS.items() for word in words}
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NAMES = frozenset(GROUPS)
_TEXT = re.compile(r"[\[(]?\s*([^,\s\])]+)\s*,\s*([^,\s\])]+)\s*[\])]?")


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared value: what it is called here, what it is, and where it stands."""

    name: str
    value: Any
    key: str
    scope: str = ""
    """What stands before it: ``discriminator`` of ``discriminator.lr``."""
    source: str = ""
    """The record or file that declares it."""


def canonical(key: str) -> str | None:
    """The one name of the setting that ``key`` spells, or None."""
    parts = _parts(key)
    return _read(parts)[0] if parts else None


def spellings(name: str) -> frozenset[str]:
    """Every spelling of a canonical name."""
    return frozenset(GROUPS[name])


def known() -> frozenset[str]:
    """Every spelling of every setting."""
    return frozenset(_CANONICAL)


def nearest(key: str) -> str | None:
    """The spelling that ``key`` is probably meant to be, where it is none itself."""
    parts = _parts(key)
    if not parts or _read(parts)[0] is not None or len(parts[-1]) < 4:
        return None
    close = get_close_matches(parts[-1], _CANONICAL, n=1, cutoff=0.82)
    return close[0] if close else None


def settings(values: Mapping[str, Any], source: str = "") -> dict[str, list[Setting]]:
    """The settings among dotted keys by canonical name; a pair of betas is two settings."""
    found: dict[str, list[Setting]] = {}
    for key, value in values.items():
        parts = _parts(str(key))
        name, scope = _read(parts) if parts else (None, "")
        if name == "betas":
            for each, beta in zip(("beta1", "beta2"), pair(value) or (), strict=False):
                found.setdefault(each, []).append(Setting(each, beta, str(key), scope, source))
        elif name is not None:
            found.setdefault(name, []).append(Setting(name, plain(value), str(key), scope, source))
    return found


def plain(value: Any) -> Any:
    """``value`` as a number where it spells one: YAML 1.1 and command lines give ``1e-5`` as text."""
    if not isinstance(value, str):
        return value
    text = value.strip().replace("_", "")
    if text.lower() in ("true", "false", "none", "null", ""):
        return {"true": True, "false": False}.get(text.lower())
    try:
        number = float(text)
    except ValueError:
        return value
    return int(number) if text.lstrip("+-").isdigit() else number


def number(value: Any) -> float | None:
    """``value`` as a finite number, or None."""
    value = plain(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def pair(value: Any) -> tuple[float, float] | None:
    """Two numbers, as a list or as the text of one."""
    if isinstance(value, str) and (match := _TEXT.fullmatch(value.strip())):
        value = list(match.groups())
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    first, second = number(value[0]), number(value[1])
    return None if first is None or second is None else (first, second)


def _read(parts: list[str]) -> tuple[str | None, str]:
    """The canonical name of a key in parts, and what stands before it."""
    last, above = parts[-1], parts[:-1]
    parent = _PARENT.get(above[-1]) if above else None
    if parent is not None and last in _PARENT_FIRST[parent]:
        return _PARENT_FIRST[parent][last], ".".join(above[:-1])
    if above and (joined := _CANONICAL.get(f"{above[-1]}_{last}")) is not None:
        return joined, ".".join(above[:-1])
    name = _CANONICAL.get(last)
    if name in _NOT_OF_A_MODEL and any(part in _OF_THE_MODEL for part in above):
        return None, ""
    return name, ".".join(above)


def _parts(key: str) -> list[str]:
    """Lower case, underscores, no dashes in front: ``--trainer.maxSteps`` is ``trainer``, ``max_steps``."""
    words = _CAMEL.sub("_", key.strip().lstrip("-")).lower().replace("-", "_").replace(" ", "_").replace("/", ".")
    return [part for part in words.split(".") if part]
