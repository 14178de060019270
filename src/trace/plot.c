#include "trace/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trace/canvas.h"
#include "trace/summary.h"

enum { TEXT_BYTES = 512, LEGEND_WIDTH = 260 };

/* Work in blues, greens and earth colours; communication red; time without work grey. */
static const color_t part_colors[RUN_N_PARTS] = {
    [OP_GROUP_GR] = {0.30, 0.47, 0.66},
    [OP_GROUP_GDN_CORE] = {0.35, 0.63, 0.31},
    [OP_GROUP_QSA] = {0.69, 0.48, 0.63},
    [OP_GROUP_PROJECTIONS] = {0.46, 0.72, 0.70},
    [OP_GROUP_ROUTER] = {0.93, 0.79, 0.28},
    [OP_GROUP_EXPERTS] = {0.95, 0.56, 0.17},
    [OP_GROUP_SHARED_EXPERT] = {0.61, 0.46, 0.37},
    [OP_GROUP_COMM] = {0.88, 0.34, 0.35},
    [OP_GROUP_LM_HEAD] = {0.16, 0.29, 0.45},
    [OP_GROUP_SAMPLING] = {1.00, 0.62, 0.66},
    [OP_GROUP_PLE] = {0.55, 0.82, 0.49},
    [OP_GROUP_OTHER] = {0.45, 0.36, 0.55},
    [OP_GROUP_HOST_GAP] = {0.74, 0.74, 0.74},
    [RUN_PART_REMAINDER] = {0.90, 0.90, 0.90},
};

static const color_t lane_color = {0.91, 0.92, 0.94};
static const color_t wait_color = {0.96, 0.90, 0.80};
static const color_t dot_color = {0.30, 0.47, 0.66}, alarm_color = {0.85, 0.25, 0.25};

static status_t fail_empty(const plot_args_t *args) {
    return status_fail(STATUS_USAGE, "%s has no steps behind the first %zu: nothing to draw", args->name,
                       summary_first_step(args->record, args->skip));
}

static status_t plot_tpot(const plot_args_t *args, const run_summary_t *summary) {
    const run_record_t *record = args->record;
    const tpot_figures_t *tpot = &summary->tpot;
    char subtitle[TEXT_BYTES];
    /* A few slow steps must not press all others onto the axis. */
    double top = fmin(tpot->max * 1.05, 3 * tpot->p90);
    snprintf(
        subtitle, sizeof subtitle,
        "steps %zu to %zu: mean %.3f ms (%.2f tokens/s), p50 %.3f, p90 %.3f, p99 %.3f, max %.3f; the line is p50%s",
        tpot->first, tpot->first + tpot->n - 1, tpot->mean, 1e3 / tpot->mean, tpot->p50, tpot->p90, tpot->p99,
        tpot->max, top < tpot->max ? ", red marks lie above the picture" : "");
    char title[TEXT_BYTES];
    snprintf(title, sizeof title, "Time per output token: %s", args->name);
    canvas_t canvas;
    TRY(canvas_begin(args->path, 520, title, subtitle, &canvas));
    canvas.x_min = (double)tpot->first;
    canvas.x_max = (double)(tpot->first + (tpot->n > 1 ? tpot->n - 1 : 1));
    canvas.y_max = top;
    canvas_y_axis(&canvas, "ms");
    canvas_x_axis(&canvas, "step");
    double p50 = canvas_y(&canvas, tpot->p50);
    canvas_line(&canvas, canvas.left, p50, canvas.right, p50, 1, part_colors[OP_GROUP_EXPERTS]);
    double size = tpot->n > 2000 ? 2 : 4;
    for (size_t step = tpot->first; step < record->n_steps; step++) {
        double ms = (double)record->wall_ns[step] / 1e6, x = canvas_x(&canvas, (double)step);
        if (ms > top)
            canvas_box(&canvas, x - 1.5, canvas.top - 8, 3, 8, alarm_color);
        else
            canvas_box(&canvas, x - size / 2, canvas_y(&canvas, ms) - size / 2, size, size, dot_color);
    }
    return canvas_end(&canvas);
}

/* Names of the parts with their mean and share, in a column. */
static void draw_legend(const canvas_t *canvas, double x, double y, const run_summary_t *summary) {
    char text[TEXT_BYTES];
    for (int part = 0; part < RUN_N_PARTS; part++, y += 22) {
        double ms = summary->parts[part].mean;
        canvas_box(canvas, x, y - 11, 14, 14, part_colors[part]);
        canvas_text(canvas, x + 22, y, ALIGN_LEFT, 12, run_part_name(part));
        snprintf(text, sizeof text, "%.3f ms", fabs(ms) < 5e-4 ? 0 : ms);
        canvas_text(canvas, x + 178, y, ALIGN_RIGHT, 12, text);
        snprintf(text, sizeof text, "%.1f %%", fabs(ms) < 5e-4 ? 0 : 100 * ms / summary->tpot.mean);
        canvas_text(canvas, x + 236, y, ALIGN_RIGHT, 12, text);
    }
}

static status_t plot_decomposition(const plot_args_t *args, const run_summary_t *summary) {
    const run_record_t *record = args->record;
    const tpot_figures_t *tpot = &summary->tpot;
    char title[TEXT_BYTES], subtitle[TEXT_BYTES], text[32];
    snprintf(title, sizeof title, "Where a token's time goes: %s", args->name);
    snprintf(subtitle, sizeof subtitle,
             "mean of steps %zu to %zu, %.3f ms a token (%.2f tokens/s); figures are the mean of the ranks",
             tpot->first, tpot->first + tpot->n - 1, tpot->mean, 1e3 / tpot->mean);
    int n_ranks = (int)record->n_ranks;
    double lane = n_ranks <= 8 ? 44 : 352.0 / n_ranks;
    int height = 94 + (int)fmax(lane * n_ranks + 56, 22.0 * RUN_N_PARTS);
    canvas_t canvas;
    TRY(canvas_begin(args->path, height, title, subtitle, &canvas));
    canvas.right -= LEGEND_WIDTH;
    canvas.x_max = tpot->mean;
    canvas.bottom = canvas.top + lane * n_ranks;
    canvas_x_axis(&canvas, "ms a token");
    for (int rank = 0; rank < n_ranks; rank++) {
        double y = canvas.top + lane * rank + lane * 0.15, at = 0;
        if (lane >= 14) {
            snprintf(text, sizeof text, "rank %d", rank);
            canvas_text(&canvas, canvas.left - 8, y + lane * 0.35 + 4, ALIGN_RIGHT, 12, text);
        }
        for (int part = 0; part < RUN_N_PARTS; part++) {
            double ms = summary->rank_parts[part * n_ranks + rank];
            if (!(ms > 0)) continue;
            canvas_box(&canvas, canvas_x(&canvas, at), y, canvas_x(&canvas, at + ms) - canvas_x(&canvas, at),
                       lane * 0.7, part_colors[part]);
            at += ms;
        }
    }
    draw_legend(&canvas, canvas.right + 28, canvas.top + 12, summary);
    return canvas_end(&canvas);
}

/* The step whose duration is nearest to the median. */
static size_t median_step(const run_record_t *record, const tpot_figures_t *tpot) {
    size_t best = tpot->first;
    for (size_t step = tpot->first; step < record->n_steps; step++)
        if (fabs((double)record->wall_ns[step] / 1e6 - tpot->p50) <
            fabs((double)record->wall_ns[best] / 1e6 - tpot->p50))
            best = step;
    return best;
}

static int group_of(const run_op_t *op) {
    for (int group = 0; group < OP_N_GROUPS; group++)
        if (strncmp(op->group, op_group_name((op_group_t)group), sizeof op->group) == 0) return group;
    return OP_GROUP_OTHER;
}

/* The groups' names, and that of waiting, in rows of seven below the plot. */
static void draw_group_names(const canvas_t *canvas, double y) {
    enum { A_ROW = 7, WAIT = OP_N_GROUPS };
    double width = (canvas->right - canvas->left) / A_ROW;
    for (int i = 0; i <= WAIT; i++) {
        double x = canvas->left + width * (i % A_ROW), at = y + 22 * (i / A_ROW);
        color_t color = i == WAIT ? wait_color : i == OP_GROUP_HOST_GAP ? lane_color : part_colors[i];
        canvas_box(canvas, x, at - 11, 14, 14, color);
        canvas_text(canvas, x + 22, at, ALIGN_LEFT, 12, i == WAIT ? "wait for ranks" : op_group_name((op_group_t)i));
    }
}

/* The operators of one step: `n` a rank, rank by rank, the same ones on each. */
typedef struct step_ops {
    const run_op_t *ops;
    size_t n, n_ranks;
} step_ops_t;

static step_ops_t find_ops(const run_record_t *record, size_t step) {
    size_t begin = 0, end;
    while (begin < record->n_ops && record->ops[begin].step != (int32_t)step)
        begin++;
    for (end = begin; end < record->n_ops && record->ops[end].step == (int32_t)step;)
        end++;
    size_t n_ranks = (size_t)record->n_ranks;
    return (step_ops_t){.ops = record->ops + begin, .n = (end - begin) / n_ranks, .n_ranks = n_ranks};
}

/* How long a rank waited in its collective number `index` until the last rank came: that one did not wait. */
static int64_t wait_ns(const step_ops_t *step, size_t index, int64_t dur_ns) {
    int64_t least_ns = dur_ns;
    for (size_t rank = 0; rank < step->n_ranks; rank++) {
        int64_t other_ns = step->ops[rank * step->n + index].dur_ns;
        if (other_ns < least_ns) least_ns = other_ns;
    }
    return dur_ns - least_ns;
}

/* A box from `start_ns` on, of `dur_ns`, cut to the plot. */
static void draw_span(const canvas_t *canvas, double y, double height, int64_t start_ns, int64_t dur_ns,
                      color_t color) {
    double from = fmax(canvas_x(canvas, (double)start_ns / 1e6), canvas->left);
    double to = fmin(canvas_x(canvas, (double)(start_ns + dur_ns) / 1e6), canvas->right);
    if (to > from) canvas_box(canvas, from, y, to - from, height, color);
}

static void draw_ops(const canvas_t *canvas, const step_ops_t *step, double lane, int64_t begin_ns) {
    for (size_t i = 0; i < step->n * step->n_ranks; i++) {
        const run_op_t *op = &step->ops[i];
        double y = canvas->top + lane * (double)(i / step->n) + lane * 0.1;
        int group = group_of(op);
        int64_t wait = group == OP_GROUP_COMM ? wait_ns(step, i % step->n, op->dur_ns) : 0;
        draw_span(canvas, y, lane * 0.8, op->start_ns - begin_ns, wait, wait_color);
        draw_span(canvas, y, lane * 0.8, op->start_ns - begin_ns + wait, op->dur_ns - wait, part_colors[group]);
    }
}

static status_t plot_timeline(const plot_args_t *args, const run_summary_t *summary) {
    const run_record_t *record = args->record;
    if (record->n_ops == 0)
        return status_fail(STATUS_USAGE, "%s has no operators to draw: start the run with --trace ops", args->name);
    size_t step = args->step < 0 ? median_step(record, &summary->tpot) : (size_t)args->step;
    if (step >= record->n_steps)
        return status_fail(STATUS_USAGE, "--step is %zu, but %s has %zu steps", step, args->name, record->n_steps);
    char title[TEXT_BYTES], subtitle[TEXT_BYTES], text[32];
    snprintf(title, sizeof title, "Step %zu on %" PRId64 " rank%s: %s", step, record->n_ranks,
             record->n_ranks == 1 ? "" : "s", args->name);
    double wall = (double)record->wall_ns[step] / 1e6;
    snprintf(subtitle, sizeof subtitle, "%.3f ms, token %" PRId32 "; a box is one operator, a gap is host time", wall,
             record->generated[step]);
    int n_ranks = (int)record->n_ranks;
    double lane = n_ranks <= 8 ? 56 : 448.0 / n_ranks;
    canvas_t canvas;
    TRY(canvas_begin(args->path, 84 + (int)(lane * n_ranks) + 120, title, subtitle, &canvas));
    canvas.bottom = canvas.top + lane * n_ranks;
    canvas.x_max = wall;
    canvas_x_axis(&canvas, "ms since the step began");
    for (int rank = 0; rank < n_ranks; rank++) {
        double y = canvas.top + lane * rank + lane * 0.1;
        canvas_box(&canvas, canvas.left, y, canvas.right - canvas.left, lane * 0.8, lane_color);
        snprintf(text, sizeof text, "rank %d", rank);
        if (lane >= 14) canvas_text(&canvas, canvas.left - 8, y + lane * 0.4 + 4, ALIGN_RIGHT, 12, text);
    }
    const step_ops_t ops = find_ops(record, step);
    draw_ops(&canvas, &ops, lane, record->start_ns[step]);
    draw_group_names(&canvas, canvas.bottom + 72);
    return canvas_end(&canvas);
}

status_t plot_write(const plot_args_t *args) {
    run_summary_t summary;
    TRY(summary_build(args->record, summary_first_step(args->record, args->skip), &summary));
    static status_t (*const plots[])(const plot_args_t *, const run_summary_t *) = {
        [PLOT_TPOT] = plot_tpot, [PLOT_DECOMPOSITION] = plot_decomposition, [PLOT_TIMELINE] = plot_timeline};
    bool has_steps = summary.tpot.n > 0 || (args->kind == PLOT_TIMELINE && args->step >= 0);
    status_t status = has_steps ? plots[args->kind](args, &summary) : fail_empty(args);
    summary_release(&summary);
    return status;
}
