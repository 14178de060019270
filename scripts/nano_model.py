"""galvani-nano as PyTorch modules: its configuration, and forms of the transformers modules that train fast.

The parameters live in transformers' own Qwen4ExpForCausalLM. Loops over experts and queries, which make the reference
slow to train, are replaced here by dense equivalents; `check_against_reference` holds the two against each other.
Quantisation is simulated with straight-through gradients, in the arithmetic of the NVFP4 and FP8 export.
"""

import math

import torch
import torch.nn.functional as F
import transformers.models.qwen4_exp.modeling_qwen4_exp as modeling
from transformers.models.qwen4_exp.configuration_qwen4_exp import Qwen4ExpTextConfig

import checkpoint_layout

N_BPE_TOKENS = 2600
VOCAB_SIZE = (
    2656  # 33 added tokens follow the BPE entries; the last 23 rows are unused, as the real model has unused rows
)
ENDOFTEXT_ID, IM_START_ID, IM_END_ID = N_BPE_TOKENS, N_BPE_TOKENS + 1, N_BPE_TOKENS + 2


def text_config():
    """The text_config of galvani-nano; what is not named here is as published for the real model."""
    return checkpoint_layout.text_config(
        bos_token_id=ENDOFTEXT_ID,
        eos_token_id=ENDOFTEXT_ID,
        hc_lowrank=32,
        head_dim=32,
        hidden_size=160,
        indexer_budget=64,
        indexer_head_dim=32,
        linear_key_head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=12,
        linear_value_head_dim=32,
        max_position_embeddings=4096,
        moe_intermediate_size=64,
        ngram_vocab_size_base=4000,
        num_attention_heads=8,
        num_experts=32,
        num_experts_per_tok=4,
        num_hidden_layers=8,
        partial_rotary_factor=0.5,
        ple_embed_dim=160,
        rope_parameters={
            "mrope_interleaved": True,
            "mrope_section": [3, 3, 2],
            "partial_rotary_factor": 0.5,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        shared_expert_intermediate_size=64,
        split_ngram_parts=16,
        vocab_size=VOCAB_SIZE,
    )


def build_model(seed=1234):
    """Qwen4ExpForCausalLM with fresh FP32 weights, drawn for training: see `init_weights`."""
    torch.manual_seed(seed)
    config = Qwen4ExpTextConfig(**text_config())
    config._attn_implementation = "eager"
    model = modeling.Qwen4ExpForCausalLM(config)
    init_weights(model)
    return model


def init_weights(model):
    """Fan-in scaled matrices, and GDN time steps log-uniform in 0.001 .. 0.1 so that some heads remember for long."""
    for name, p in model.named_parameters():
        if p.dim() >= 2 and "conv1d" not in name and "embed" not in name:
            torch.nn.init.normal_(p, std=0.5 / math.sqrt(p.shape[-1]))
        elif "embed_tokens" in name:
            torch.nn.init.normal_(p, std=0.1)
    for module in model.modules():
        if isinstance(module, modeling.Qwen4ExpTextGatedDeltaNet):
            step = torch.exp(torch.empty_like(module.dt_bias).uniform_(math.log(0.001), math.log(0.1)))
            module.dt_bias.data.copy_(step + torch.log(-torch.expm1(-step)))


# --- simulated quantisation -------------------------------------------------------------------------------------------


def round_e2m1(magnitude):
    """Nearest of the eight E2M1 magnitudes; ties at 0.75, 1.75 and 3.5 go up, the others down (to the even code)."""
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return (torch.round(magnitude / step) * step).clamp(max=6.0)


def nvfp4(weight, amax):
    """`weight` [..., K] through NVFP4 and back: blocks of 16 along K, E4M3 block scales, one FP32 scale from `amax`."""
    scale_2 = amax / 2688.0
    blocks = weight.reshape(*weight.shape[:-1], -1, 16)
    scale = blocks.abs().amax(-1, keepdim=True) / 6.0 / scale_2.reshape(-1, *([1] * (blocks.dim() - 1)))
    scale = scale.clamp(max=448.0).to(torch.float8_e4m3fn).float() * scale_2.reshape(-1, *([1] * (blocks.dim() - 1)))
    codes = round_e2m1(blocks.abs() / scale.clamp(min=1e-30))
    return (torch.sign(blocks) * codes * scale).reshape(weight.shape)


def fp8_table(weight):
    """The PLE table through FP8 E4M3 with one BF16 scale and back."""
    scale = (weight.abs().amax() / 448.0).to(torch.bfloat16).float()
    return (weight / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float() * scale


def straight_through(weight, quantised):
    return weight + (quantised - weight).detach()


# --- dense training forms ---------------------------------------------------------------------------------------------


class TrainingState:
    """What the patched modules read and leave behind during one forward pass."""

    def __init__(self):
        self.sparse = False  # QSA attends to the selected blocks only
        self.quantised = False  # experts and PLE table pass through their storage format
        self.balance_losses = []
        self.indexer_losses = []

    def take_losses(self):
        balance, indexer = sum(self.balance_losses), sum(self.indexer_losses)
        self.balance_losses, self.indexer_losses = [], []
        return balance, indexer


def rms_norm_forward(self, x):
    width = self.group_size or x.shape[-1]
    out = F.rms_norm(x.float().unflatten(-1, (-1, width)), (width,), eps=self.eps).flatten(-2)
    return (out * (1.0 + self.weight.float())).type_as(x)


def causal_depthwise_conv(x, weight, dilation):
    """x [B, C, L], weight [C, K]: the last tap is the current position."""
    n_taps = weight.shape[-1]
    padded = F.pad(x, ((n_taps - 1) * dilation, 0))
    length = x.shape[-1]
    out = 0
    for tap in range(n_taps):
        out = out + padded[..., tap * dilation : tap * dilation + length] * weight[:, tap, None]
    return out


def conv_forward(hidden_states, weight, bias=None, activation=None, **kwargs):
    return F.silu(causal_depthwise_conv(hidden_states, weight, 1)).to(hidden_states.dtype)


def ple_conv_forward(self, hidden_states, cache):
    x = hidden_states.transpose(1, 2)
    out = F.silu(causal_depthwise_conv(x, self.conv1d.weight.squeeze(1), self.conv1d.dilation[0]))
    return out.transpose(1, 2)


def unit_lower_inverse(strict):
    """Inverse of I + strict ([..., n, n], strictly lower triangular, n a power of two) by doubling diagonal blocks."""
    n = strict.shape[-1]
    rows = torch.arange(n, device=strict.device)
    inverse = torch.eye(n, device=strict.device, dtype=strict.dtype).expand_as(strict)
    size = 1
    while size < n:
        block = rows // size
        corner = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - inverse @ (strict * corner) @ inverse
        size *= 2
    return inverse


def gated_delta_rule(query, key, value, g, beta, initial_state=None, output_final_state=False, **kwargs):
    """The chunked gated delta rule in FP32; [B, L, heads, D]."""
    dtype, length = value.dtype, value.shape[1]
    chunk = min(32, 1 << (length - 1).bit_length())
    ratio = value.shape[2] // key.shape[2]
    pad = -length % chunk
    with torch.autocast(query.device.type, enabled=False):
        query, key = (modeling.l2norm(x.float()) for x in (query, key))
        query = query * query.shape[-1] ** -0.5
        query, key = (x.repeat_interleave(ratio, dim=2) if ratio > 1 else x for x in (query, key))
        query, key, value = (
            F.pad(x.float().transpose(1, 2), (0, 0, 0, pad)).unflatten(2, (-1, chunk)) for x in (query, key, value)
        )
        g, beta = (F.pad(x.float().transpose(1, 2), (0, pad)).unflatten(2, (-1, chunk)) for x in (g, beta))
        decay = g.cumsum(-1)
        lower = torch.ones(chunk, chunk, dtype=torch.bool, device=g.device).tril()
        pairwise = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).masked_fill(~lower, -math.inf).exp()
        key_beta = key * beta.unsqueeze(-1)
        inverse = unit_lower_inverse((key_beta @ key.transpose(-1, -2) * pairwise).tril(-1))
        new_value = inverse @ (value * beta.unsqueeze(-1))
        key_decayed = inverse @ (key_beta * decay.exp().unsqueeze(-1))
        within = query @ key.transpose(-1, -2) * pairwise
        query = query * decay.exp().unsqueeze(-1)
        key_out = (key * (decay[..., -1:] - decay).exp().unsqueeze(-1)).transpose(-1, -2)
        chunk_decay = decay[..., -1].exp()[..., None, None]
        state = value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
        outputs = []
        for i in range(value.shape[2]):
            v = new_value[:, :, i] - key_decayed[:, :, i] @ state
            outputs.append(query[:, :, i] @ state + within[:, :, i] @ v)
            state = state * chunk_decay[:, :, i] + key_out[:, :, i] @ v
        out = torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].transpose(1, 2)
    return out.to(dtype).contiguous(), None


def indexer_scores(indexer, hidden_states, cos, sin):
    """Scores of every complete block for every query: [B, L, L / ratio], and the mask of the visible blocks."""
    batch, length, _ = hidden_states.shape
    ratio, dim = indexer.compress_ratio, indexer.index_head_dim
    n_blocks = length // ratio
    qk = indexer.index_qk_proj(hidden_states).unflatten(-1, (-1, dim))
    q = indexer.q_layernorm(qk[:, :, :-1].float())
    q = modeling.apply_rotary_pos_emb(q, cos=cos, sin=sin, unsqueeze_dim=2)
    keys = qk[:, : n_blocks * ratio, -1].float().unflatten(1, (n_blocks, ratio)).mean(2)
    keys = indexer.k_layernorm(keys).unsqueeze(2)
    starts = slice(0, n_blocks * ratio, ratio)
    keys = modeling.apply_rotary_pos_emb(keys, cos=cos[:, starts], sin=sin[:, starts], unsqueeze_dim=2).squeeze(2)
    scores = torch.relu(torch.einsum("blhd,bnd->bhln", q, keys)).sum(1) / math.sqrt(dim)
    position = torch.arange(length, device=scores.device)
    visible = torch.arange(n_blocks, device=scores.device) < ((position + 1) // ratio)[:, None]
    return scores, visible


def selected_tokens(indexer, scores, visible):
    """The token mask [B, L, L] that QSA attends to: the best blocks and the tail after the last complete block."""
    length, n_blocks = visible.shape
    ratio = indexer.compress_ratio
    n_kept = min(indexer.block_topk, n_blocks)
    chosen = scores.masked_fill(~visible, -1.0).topk(n_kept, dim=-1).indices
    blocks = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True) & visible
    position = torch.arange(length, device=scores.device)
    tail = position[None, :] >= ((position + 1) // ratio * ratio)[:, None]
    tokens = F.pad(blocks.repeat_interleave(ratio, dim=-1), (0, length - n_blocks * ratio))
    return (tokens | tail) & (position[None, :] <= position[:, None])


def attention_forward(state):
    """QSA over full sequences. The indexer learns to imitate the attention that it selects for (KL, blocks only)."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        batch, length, _ = hidden_states.shape
        cos, sin = (x.float() for x in position_embeddings)
        scores, visible = indexer_scores(self.indexer, hidden_states.detach(), cos, sin)
        query, gate = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim * 2).chunk(2, dim=-1)
        query = self.q_norm(query).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(batch, length, -1, self.head_dim)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        query, key = modeling.apply_rotary_pos_emb(query, key, cos, sin)
        key = key.repeat_interleave(self.num_key_value_groups, dim=1)
        value = value.repeat_interleave(self.num_key_value_groups, dim=1)
        logits = (query.to(value.dtype) @ key.to(value.dtype).transpose(2, 3)).float() * self.scaling
        position = torch.arange(length, device=logits.device)
        causal = position[None, :] <= position[:, None]
        dense = logits.masked_fill(~causal, -math.inf).softmax(-1)

        ratio, n_blocks = self.indexer.compress_ratio, visible.shape[1]
        target = dense.detach().mean(1)[..., : n_blocks * ratio].unflatten(-1, (n_blocks, ratio)).sum(-1) * visible
        target = target / target.sum(-1, keepdim=True).clamp(min=1e-6)
        log_p = scores.masked_fill(~visible, -1e4).log_softmax(-1)
        state.indexer_losses.append(-(target * log_p).sum(-1).mean())

        probs = dense
        if state.sparse:
            keep = selected_tokens(self.indexer, scores.detach(), visible).unsqueeze(1)
            probs = logits.masked_fill(~keep, -math.inf).softmax(-1)
        out = (probs.to(value.dtype) @ value).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out * torch.sigmoid(gate.reshape(batch, length, -1))), None

    return forward


def router_forward(state):
    """The reference router, plus the load-balancing loss n_experts * sum(load * mean probability)."""

    def forward(self, hidden_states):
        flat = hidden_states.reshape(-1, self.hidden_dim)
        with torch.autocast(flat.device.type, enabled=False):
            logits = F.linear(flat.float(), self.weight.float())
        probs = logits.softmax(-1)
        top, indices = probs.topk(self.top_k, dim=-1)
        load = torch.zeros_like(probs).scatter(1, indices, 1.0 / self.top_k).mean(0)
        state.balance_losses.append(self.num_experts * (load * probs.mean(0)).sum())
        return logits, top / top.sum(-1, keepdim=True), indices

    return forward


def experts_forward(state):
    """All experts for all tokens, weighted by zero where an expert was not chosen."""

    def forward(self, hidden_states, top_k_index, top_k_weights):
        gate_up, down = self.gate_up_proj, self.down_proj
        if state.quantised:
            gate_up = straight_through(gate_up, nvfp4(gate_up, gate_up.abs().amax((1, 2))))
            down = straight_through(down, nvfp4(down, down.abs().amax((1, 2))))
        weights = torch.zeros(hidden_states.shape[0], self.num_experts, device=hidden_states.device)
        weights = weights.scatter(1, top_k_index, top_k_weights.float())
        both = F.linear(hidden_states, gate_up.flatten(0, 1)).unflatten(-1, (self.num_experts, 2, -1))
        mid = F.silu(both[:, :, 0]) * both[:, :, 1] * weights.unsqueeze(-1).to(both.dtype)
        return F.linear(mid.flatten(1), down.transpose(0, 1).flatten(1))

    return forward


def ngram_lookup(state, embedding):
    def forward(ids):
        table = embedding.weight
        if state.quantised:
            table = straight_through(table, fp8_table(table))
        return F.embedding(ids, table)

    return forward


def make_trainable(model):
    """Replaces the slow forms in `model` by dense ones, for whole sequences without cache; returns its state."""
    state = TrainingState()
    modeling.torch_chunk_gated_delta_rule = gated_delta_rule
    modeling.causal_conv1d_fn = conv_forward
    for module in model.modules():
        forms = {
            modeling.Qwen4ExpTextRMSNorm: rms_norm_forward,
            modeling.Qwen4ExpTextAttention: attention_forward(state),
            modeling.Qwen4ExpTextTopKRouter: router_forward(state),
            modeling.Qwen4ExpTextExperts: experts_forward(state),
        }
        if type(module) in forms:
            module.forward = forms[type(module)].__get__(module)
        elif isinstance(module, modeling.Qwen4ExpTextPLELayer):
            module._short_conv = ple_conv_forward.__get__(module)
            table = module.ple_embedding.ngram_embedding
            table.forward = ngram_lookup(state, table)
    return state


def forward_logits(model, input_ids):
    """Logits [B, L, V] of whole sequences that start at position 0 (no padding on the left, no cache)."""
    batch, length = input_ids.shape
    position_ids = torch.arange(length, device=input_ids.device).expand(batch, length)
    masks = {"indexed_attention": None, "qwen_sparse_attention": None, "linear_attention": None}
    out = model.model(input_ids=input_ids, attention_mask=masks, position_ids=position_ids, use_cache=False)
    return model.lm_head(out.last_hidden_state)


def check_against_reference(length=70):
    """Raises unless the training forms equal transformers' own modules in FP32, where a query leaves one block out.

    Longer random inputs meet blocks whose scores are all zero; which of them is taken is open.
    """
    reference = build_model(seed=7)
    torch.manual_seed(7)
    for name, p in reference.named_parameters():
        if "norm" in name or "ple" in name:
            p.data.add_(torch.randn_like(p) * 0.2)
    ids = torch.randint(0, N_BPE_TOKENS, (2, length))
    ids[:, length // 2] = ENDOFTEXT_ID
    with torch.no_grad():
        expected = reference(input_ids=ids, use_cache=False).logits
        saved = modeling.torch_chunk_gated_delta_rule, modeling.causal_conv1d_fn
        state = make_trainable(reference)
        state.sparse = True
        got = forward_logits(reference, ids)
    modeling.torch_chunk_gated_delta_rule, modeling.causal_conv1d_fn = saved
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    if error > 1e-3:
        raise AssertionError(f"training forms differ from the reference by {error:.2e} of the largest logit")
    return error
