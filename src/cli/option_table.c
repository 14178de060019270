#include "cli/option_table.h"

#include "comm/watchdog.h"
#include "model/tensor_source.h"

/* Whole numbers are held exactly by a double up to 2^53. */
#define LARGEST_INT 9007199254740992.0

#define AT(field) offsetof(options_t, field)

/* Those on ranks, and those that look at files and sizes. */
#define COMMAND_RANKS (COMMAND_RUN | COMMAND_SHARD | COMMAND_BENCH | COMMAND_MICROBENCH)
#define COMMAND_ALL (COMMAND_RANKS | COMMAND_MODEL | COMMAND_INSPECT | COMMAND_TRACE)

const option_spec_t option_table[] = {
    {"Model", "model", OPTION_TEXT, COMMAND_MICROBENCH, false, AT(model), "MODEL", NULL, 0, 0,
     "whose shapes: synthetic:NAME, or a directory with a config.json; no weights are read (synthetic:full)"},
    {"Model", "model", OPTION_TEXT, COMMAND_RUN | COMMAND_BENCH, false, AT(model), "MODEL", NULL, 0, 0,
     "directory of shards (galvani shard makes it), or synthetic:NAME with made-up weights; NAME is full, nano or the "
     "path of a config.json"},
    {NULL, "synthetic-seed", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(synthetic_seed), "N", NULL, 0,
     LARGEST_INT, "seed of a synthetic model's weights (0)"},
    {"Prompt", "prompt", OPTION_TEXT, COMMAND_RUN, false, AT(prompt), "TEXT", NULL, 0, 0, "the prompt"},
    {NULL, "prompt-file", OPTION_TEXT, COMMAND_RUN, false, AT(prompt_file), "FILE", NULL, 0, 0,
     "read the prompt from FILE (- is stdin)"},
    {NULL, "tokens", OPTION_TEXT, COMMAND_RUN, false, AT(tokens), "1,2,3", NULL, 0, 0, "the prompt as token ids"},
    {NULL, "tokens-file", OPTION_TEXT, COMMAND_RUN, false, AT(tokens_file), "FILE", NULL, 0, 0,
     "token ids from FILE, separated by commas or white space"},
    {"Chat", "chat", OPTION_FLAG, COMMAND_RUN, true, AT(chat), NULL, NULL, 0, 0,
     "make the prompt a user turn of the model's chat template"},
    {NULL, "system", OPTION_TEXT, COMMAND_RUN, true, AT(system), "TEXT", NULL, 0, 0, "system message before it"},
    {NULL, "think", OPTION_SWITCH, COMMAND_RUN, true, AT(think), "on|off", NULL, 0, 0,
     "let the model think before it answers (on)"},
    {NULL, "reasoning-effort", OPTION_CHOICE, COMMAND_RUN, true, AT(reasoning_effort), "LEVEL", "xhigh|medium|low", 0,
     0, "how long it may think (xhigh)"},
    {NULL, "preserve-thinking", OPTION_SWITCH, COMMAND_RUN, true, AT(preserve_thinking), "on|off", NULL, 0, 0,
     "keep earlier turns' reasoning in the prompt (on)"},
    {"Many requests", "requests", OPTION_TEXT, COMMAND_RUN, false, AT(requests), "FILE.jsonl", NULL, 0, 0,
     "one request a line, one after another; --out is then a directory"},
    {"Generation", "max-new", OPTION_INT, COMMAND_RUN, true, AT(max_new), "N", NULL, 1, 1 << 24,
     "tokens to generate at most (128)"},
    {NULL, "ignore-eos", OPTION_FLAG, COMMAND_RUN, true, AT(ignore_eos), NULL, NULL, 0, 0, "go on past end tokens"},
    {NULL, "temperature", OPTION_REAL, COMMAND_RUN, true, AT(temperature), "X", NULL, 0, 1e6,
     "0 takes the likeliest token (0)"},
    {NULL, "top-p", OPTION_REAL, COMMAND_RUN, true, AT(top_p), "X", NULL, 1e-6, 1,
     "sample from the likeliest tokens that hold this probability (1)"},
    {NULL, "top-k", OPTION_INT, COMMAND_RUN, true, AT(top_k), "N", NULL, 0, 1 << 24,
     "sample from the N likeliest tokens; 0 is all (0)"},
    {NULL, "seed", OPTION_INT, COMMAND_RUN, true, AT(seed), "N", NULL, 0, LARGEST_INT, "seed of the sampler (0)"},
    {NULL, "logits", OPTION_FLAG, COMMAND_RUN, true, AT(logits), NULL, NULL, 0, 0,
     "store every step's logits in the run file"},
    {NULL, "top-logprobs", OPTION_INT, COMMAND_RUN, true, AT(top_logprobs), "N", NULL, 0, 1024,
     "store the N best log-probabilities of every step (0)"},
    {"Benchmark", "prompt-len", OPTION_INT, COMMAND_BENCH, false, AT(prompt_len), "N", NULL, 1, 1 << 24,
     "prompt tokens, made up from the seed (8192)"},
    {NULL, "max-new", OPTION_INT, COMMAND_BENCH, false, AT(max_new), "N", NULL, 2, 1 << 24, "tokens to generate (512)"},
    {NULL, "warmup", OPTION_INT, COMMAND_BENCH, false, AT(warmup), "N", NULL, 1, 1 << 24,
     "tokens before those that count as steady decode (32)"},
    {NULL, "repeats", OPTION_INT, COMMAND_BENCH, false, AT(repeats), "N", NULL, 1, 1000, "passes (3)"},
    {NULL, "control", OPTION_CONTROL, COMMAND_BENCH, false, AT(control), "NAME=off,...", NULL, 0, 0,
     "take turns with the same run with these routes switched, and print the difference"},
    {NULL, "seed", OPTION_INT, COMMAND_BENCH, false, AT(seed), "N", NULL, 0, LARGEST_INT, "seed of the prompt (0)"},
    {NULL, "json", OPTION_TEXT, COMMAND_BENCH, false, AT(json), "FILE", NULL, 0, 0, "write the figures as JSON"},
    {"Microbenchmark", "tokens", OPTION_INT, COMMAND_MICROBENCH, false, AT(n_tokens), "N", NULL, 1, 1 << 16,
     "tokens of one call: 1 is decode, more are a chunk of prefill (1)"},
    {NULL, "context", OPTION_INT, COMMAND_MICROBENCH, false, AT(context), "N", NULL, 1, 1 << 24,
     "tokens of the sequence, those of the call included (8192, or all that the model takes)"},
    {NULL, "tp", OPTION_INT, COMMAND_MICROBENCH, false, AT(tp), "T", NULL, 1, 1024,
     "take the shapes of one of T ranks (as many as mpirun started)"},
    {NULL, "repeats", OPTION_INT, COMMAND_MICROBENCH, false, AT(passes), "N", NULL, 1, 1000,
     "timed passes, whose median counts (9)"},
    {NULL, "bandwidth", OPTION_REAL, COMMAND_MICROBENCH, false, AT(bandwidth), "GB/S", NULL, 0, 1e6,
     "memory bandwidth that the floor is made from (that of a copy, measured first)"},
    {NULL, "json", OPTION_TEXT, COMMAND_MICROBENCH, false, AT(json), "FILE", NULL, 0, 0, "write the figures as JSON"},
    {"System", "backend", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(backend), "NAME",
     "auto|cpu|cuda", 0, 0, "where to compute (auto)"},
    {NULL, "out", OPTION_TEXT, COMMAND_BENCH, false, AT(out), "FILE", NULL, 0, 0,
     "write the run file of the last pass without the control"},
    {NULL, "out", OPTION_TEXT, COMMAND_RUN, false, AT(out), "FILE", NULL, 0, 0,
     "write the run file (with --requests: a directory of them)"},
    {NULL, "comm", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(comm), "NAME",
     "auto|push|nccl|mpi", 0, 0, "what carries sums between ranks (auto)"},
    {NULL, "dense", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(dense), "FORMAT",
     "auto|fp16|q8|qpn8", 0, 0,
     "form of the projections of GR, GDN and QSA on GPUs, made while loading; auto is q8 in bench and fp16 elsewhere "
     "(auto)"},
    {NULL, "route", OPTION_ROUTE, COMMAND_RUN | COMMAND_BENCH | COMMAND_MICROBENCH, false, AT(routes), "NAME=on|off",
     NULL, 0, 0, "switch a fast path (docs/cuda.md lists them); may be repeated"},
    {NULL, "prefill-chunk", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(prefill_chunk), "N", NULL, 1, 1 << 20,
     "prompt tokens computed at once (on a GPU 8192, or fewer where memory is short; else 256)"},
    {NULL, "trace", OPTION_CHOICE, COMMAND_RUN | COMMAND_BENCH, true, AT(trace), "LEVEL", "off|steps|ops", 0, 0,
     "what the run file records of time (steps)"},
    {"Memory plan", "plan", OPTION_FLAG, COMMAND_RUN | COMMAND_BENCH, false, AT(plan), NULL, NULL, 0, 0,
     "print what each rank will take and which contexts fit, and stop; needs neither weights nor a GPU"},
    {NULL, "tp", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(tp), "T", NULL, 1, 1024,
     "plan for T ranks (those that mpirun started)"},
    {NULL, "max-context", OPTION_INT, COMMAND_RUN | COMMAND_BENCH, false, AT(max_context), "N", NULL, 1, 1 << 30,
     "make room for N tokens (what the prompts need; a plan without a prompt: 8704)"},
    {NULL, "device-memory", OPTION_BYTES, COMMAND_RUN | COMMAND_BENCH, false, AT(device_memory), "SIZE", NULL, 1,
     LARGEST_INT, "plan for GPUs of that size, such as 32GiB (the GPU that is here)"},
    {"Conversion", "checkpoint", OPTION_TEXT, COMMAND_SHARD, false, AT(checkpoint), "DIR", NULL, 0, 0,
     "Hugging Face checkpoint: config.json and safetensors"},
    {NULL, "out", OPTION_TEXT, COMMAND_SHARD, false, AT(out), "DIR", NULL, 0, 0, "directory for model.rank<r>of<T>.h5"},
    {NULL, "tp", OPTION_INT, COMMAND_SHARD, false, AT(tp), "T", NULL, 1, 1024, "number of tensor-parallel ranks"},
    {NULL, "quantize-experts", OPTION_CHOICE, COMMAND_SHARD, false, AT(quantize_experts), "FORMAT", "nvfp4", 0, 0,
     "quantise unquantised experts; without it they are kept as FP16"},
    {"Model of a step", "model", OPTION_TEXT, COMMAND_MODEL, false, AT(model), "MODEL", NULL, 0, 0,
     "synthetic:NAME, or a directory with a config.json (synthetic:full)"},
    {NULL, "tp", OPTION_INT, COMMAND_MODEL, false, AT(tp), "T", NULL, 1, 1024, "number of ranks (1)"},
    {NULL, "dense", OPTION_CHOICE, COMMAND_MODEL, false, AT(dense), "FORMAT", "fp16|q8|qpn8", 0, 0,
     "form of the projections of GR, GDN and QSA (fp16)"},
    {NULL, "context", OPTION_INT, COMMAND_MODEL, false, AT(context), "N", NULL, 1, INT32_MAX,
     "tokens before the one that is modelled (8464, the middle of the lane)"},
    {NULL, "device", OPTION_TEXT, COMMAND_MODEL, false, AT(device), "NAME", NULL, 0, 0, "H200 or V100 (H200)"},
    {NULL, "measured", OPTION_TEXT, COMMAND_MODEL, false, AT(measured), "FILE", NULL, 0, 0,
     "model the run that galvani bench --json wrote to FILE, and show its times beside"},
    {"Inspection", "verify", OPTION_FLAG, COMMAND_INSPECT, false, AT(verify), NULL, NULL, 0, 0,
     "check the digest of every tensor (shards), and that the parts of a run file agree"},
    {NULL, "mend", OPTION_FLAG, COMMAND_INSPECT, false, AT(mend), NULL, NULL, 0, 0,
     "make a run file whose writer died an ordinary one, that every program opens"},
    {"Tracing", "skip", OPTION_INT, COMMAND_TRACE, false, AT(skip), "N", NULL, 0, LARGEST_INT,
     "leave out the first N steps (32 if as many remain, else the prefill alone)"},
    {NULL, "format", OPTION_CHOICE, COMMAND_TRACE, false, AT(format), "NAME", "perfetto|csv|ops-csv", 0, 0,
     "of export: JSON for ui.perfetto.dev, a row a step, or a row an operator (perfetto)"},
    {NULL, "kind", OPTION_CHOICE, COMMAND_TRACE, false, AT(kind), "NAME", "tpot|decomposition|timeline", 0, 0,
     "of plot: each step's time, its parts, or the operators of one step (tpot)"},
    {NULL, "step", OPTION_INT, COMMAND_TRACE, false, AT(step), "N", NULL, 0, LARGEST_INT,
     "of plot --kind timeline (the step of median duration)"},
    {NULL, "out", OPTION_TEXT, COMMAND_TRACE, false, AT(out), "PATH", NULL, 0, 0,
     "of export (standard output), of plot (FILE's name with .KIND.svg; or .png)"},
    {NULL, "bandwidth", OPTION_REAL, COMMAND_TRACE, false, AT(bandwidth), "GB/S", NULL, 0, 1e6,
     "of report: that of the device's memory, for the share of the byte floor (what the run file says)"},
    {NULL, "interval", OPTION_INT, COMMAND_TRACE, false, AT(interval_ms), "MS", NULL, 0, 86400000,
     "of watch: how often to look (500)"},
    {"Common", "config", OPTION_TEXT, COMMAND_ALL, false, AT(config), "FILE", NULL, 0, 0,
     "JSON object of these options; the command line wins"},
    {NULL, "quiet", OPTION_FLAG, COMMAND_RANKS, false, AT(quiet), NULL, NULL, 0, 0, "no progress and no summary"},
    {NULL, "log-level", OPTION_CHOICE, COMMAND_ALL, false, AT(log_level), "LEVEL", "error|warning|info|debug", 0, 0,
     "what to say on stderr (info)"},
    {NULL, "stall-limit", OPTION_INT, COMMAND_RANKS, false, AT(stall_limit), "SECONDS", NULL, 0, 86400,
     "end the job when a rank stands still for that long; 0: never (30)"},
    {NULL, "help", OPTION_FLAG, COMMAND_ALL, false, AT(help), NULL, NULL, 0, 0, "print this and stop"},
};
const int n_option_table = sizeof option_table / sizeof option_table[0];
_Static_assert(sizeof option_table / sizeof option_table[0] <= OPTION_TABLE_MAX, "OPTION_TABLE_MAX");

static const options_t defaults = {
    .think = true,
    .preserve_thinking = true,
    .reasoning_effort = "xhigh",
    .max_new = 128,
    .prompt_len = 8192,
    .repeats = 3,
    .warmup = 32,
    .n_tokens = 1,
    .passes = 9,
    .top_p = 1,
    .backend = "auto",
    .comm = "auto",
    .dense = "auto",
    .trace = "steps",
    .log_level = "info",
    .skip = -1,
    .step = -1,
    .interval_ms = 500,
    .format = "perfetto",
    .kind = "tpot",
    .stall_limit = WATCHDOG_DEFAULT_LIMIT_S,
};

options_t option_defaults(command_bit_t command) {
    options_t options = defaults;
    options.command = command;
    if (command == COMMAND_BENCH) options.max_new = 512;
    if (command == COMMAND_MICROBENCH || command == COMMAND_MODEL) options.model = TENSOR_SOURCE_SYNTHETIC "full";
    if (command == COMMAND_MODEL) {
        options.tp = 1;
        options.dense = "fp16";
        options.context = 8192 + 272;
        options.device = "H200";
    }
    return options;
}
