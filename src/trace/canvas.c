#include "trace/canvas.h"

#include <cairo-svg.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const color_t ink = {0.13, 0.15, 0.18}, grid = {0.88, 0.89, 0.91};

enum { N_TICKS = 8 };

static bool has_suffix(const char *path, const char *suffix) {
    size_t length = strlen(path), n = strlen(suffix);
    return length > n && strcmp(path + length - n, suffix) == 0;
}

static void use_color(const canvas_t *canvas, color_t color) {
    cairo_set_source_rgb(canvas->cairo, color.red, color.green, color.blue);
}

status_t canvas_begin(const char *path, int height, const char *title, const char *subtitle, canvas_t *canvas) {
    bool is_png = has_suffix(path, ".png");
    if (!is_png && !has_suffix(path, ".svg"))
        return status_fail(STATUS_USAGE, "a picture's name ends with .svg or .png, but %s does not", path);
    canvas_t begun = {.path = path};
    begun.surface = is_png ? cairo_image_surface_create(CAIRO_FORMAT_RGB24, CANVAS_WIDTH * CANVAS_PNG_SCALE,
                                                        height * CANVAS_PNG_SCALE)
                           : cairo_svg_surface_create(path, CANVAS_WIDTH, height);
    cairo_status_t created = cairo_surface_status(begun.surface);
    if (created != CAIRO_STATUS_SUCCESS) {
        cairo_surface_destroy(begun.surface);
        return status_fail(STATUS_DEVICE, "cannot create %s: %s", path, cairo_status_to_string(created));
    }
    begun.cairo = cairo_create(begun.surface);
    if (is_png) cairo_scale(begun.cairo, CANVAS_PNG_SCALE, CANVAS_PNG_SCALE);
    begun.left = 80;
    begun.right = CANVAS_WIDTH - 40;
    begun.top = 84;
    begun.bottom = height - 60;
    canvas_box(&begun, 0, 0, CANVAS_WIDTH, height, (color_t){1, 1, 1});
    cairo_select_font_face(begun.cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_BOLD);
    canvas_text(&begun, 24, 34, ALIGN_LEFT, 19, title);
    cairo_select_font_face(begun.cairo, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    canvas_text(&begun, 24, 58, ALIGN_LEFT, 13, subtitle);
    *canvas = begun;
    return STATUS_OK;
}

status_t canvas_end(canvas_t *canvas) {
    cairo_status_t result = cairo_status(canvas->cairo);
    cairo_destroy(canvas->cairo);
    bool is_png = cairo_surface_get_type(canvas->surface) == CAIRO_SURFACE_TYPE_IMAGE;
    errno = 0;
    if (result == CAIRO_STATUS_SUCCESS && is_png) result = cairo_surface_write_to_png(canvas->surface, canvas->path);
    cairo_surface_finish(canvas->surface);
    if (result == CAIRO_STATUS_SUCCESS) result = cairo_surface_status(canvas->surface);
    cairo_surface_destroy(canvas->surface);
    if (result == CAIRO_STATUS_SUCCESS) return STATUS_OK;
    return status_fail(STATUS_DEVICE, "cannot write %s: %s", canvas->path,
                       errno ? strerror(errno) : cairo_status_to_string(result));
}

void canvas_text(const canvas_t *canvas, double x, double y, align_t align, double size, const char *text) {
    cairo_text_extents_t extents;
    cairo_set_font_size(canvas->cairo, size);
    cairo_text_extents(canvas->cairo, text, &extents);
    double shift = align == ALIGN_RIGHT ? extents.x_advance : align == ALIGN_CENTER ? extents.x_advance / 2 : 0;
    use_color(canvas, ink);
    cairo_move_to(canvas->cairo, x - shift, y);
    cairo_show_text(canvas->cairo, text);
}

void canvas_box(const canvas_t *canvas, double x, double y, double width, double height, color_t color) {
    use_color(canvas, color);
    cairo_rectangle(canvas->cairo, x, y, width, height);
    cairo_fill(canvas->cairo);
}

void canvas_line(const canvas_t *canvas, double x0, double y0, double x1, double y1, double width, color_t color) {
    use_color(canvas, color);
    cairo_set_line_width(canvas->cairo, width);
    cairo_move_to(canvas->cairo, x0, y0);
    cairo_line_to(canvas->cairo, x1, y1);
    cairo_stroke(canvas->cairo);
}

/* Place of a value in its range, 0 to 1; an empty range has one place. */
static double place(double value, double minimum, double maximum) {
    return maximum > minimum ? (value - minimum) / (maximum - minimum) : 0;
}

double canvas_x(const canvas_t *canvas, double value) {
    return canvas->left + place(value, canvas->x_min, canvas->x_max) * (canvas->right - canvas->left);
}

double canvas_y(const canvas_t *canvas, double value) {
    return canvas->bottom - place(value, canvas->y_min, canvas->y_max) * (canvas->bottom - canvas->top);
}

/* The least of 1, 2, 5 times a power of ten that is not below `value`. */
static double round_up(double value) {
    if (!(value > 0)) return 1;
    double power = pow(10, floor(log10(value)));
    static const double steps[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (steps[i] * power >= value * (1 - 1e-12)) return steps[i] * power;
    return 10 * power;
}

/* First tick not below `minimum`, and the distance of ticks. */
static double tick_step(double minimum, double maximum, double *first) {
    double step = round_up((maximum - minimum) / N_TICKS);
    *first = ceil(minimum / step - 1e-9) * step + 0.0; /* + 0.0 turns -0 into 0 */
    return step;
}

void canvas_x_axis(const canvas_t *canvas, const char *label) {
    double first, step = tick_step(canvas->x_min, canvas->x_max, &first);
    char text[32];
    for (int i = 0; first + i * step <= canvas->x_max * (1 + 1e-12); i++) {
        double value = first + i * step;
        double x = canvas_x(canvas, value);
        canvas_line(canvas, x, canvas->top, x, canvas->bottom, 1, grid);
        snprintf(text, sizeof text, "%g", value);
        canvas_text(canvas, x, canvas->bottom + 20, ALIGN_CENTER, 12, text);
    }
    canvas_line(canvas, canvas->left, canvas->bottom, canvas->right, canvas->bottom, 1, ink);
    canvas_text(canvas, (canvas->left + canvas->right) / 2, canvas->bottom + 42, ALIGN_CENTER, 13, label);
}

void canvas_y_axis(const canvas_t *canvas, const char *label) {
    double first, step = tick_step(canvas->y_min, canvas->y_max, &first);
    char text[32];
    for (int i = 0; first + i * step <= canvas->y_max * (1 + 1e-12); i++) {
        double value = first + i * step;
        double y = canvas_y(canvas, value);
        canvas_line(canvas, canvas->left, y, canvas->right, y, 1, grid);
        snprintf(text, sizeof text, "%g", value);
        canvas_text(canvas, canvas->left - 8, y + 4, ALIGN_RIGHT, 12, text);
    }
    canvas_line(canvas, canvas->left, canvas->top, canvas->left, canvas->bottom, 1, ink);
    cairo_save(canvas->cairo);
    cairo_translate(canvas->cairo, 22, (canvas->top + canvas->bottom) / 2);
    cairo_rotate(canvas->cairo, -acos(0.0));
    canvas_text(canvas, 0, 0, ALIGN_CENTER, 13, label);
    cairo_restore(canvas->cairo);
}
