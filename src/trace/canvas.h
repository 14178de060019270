#ifndef GALVANI_TRACE_CANVAS_H
#define GALVANI_TRACE_CANVAS_H

/* A picture with a title and one plot area in it, drawn with cairo into an SVG or PNG file. */

#include <cairo.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CANVAS_WIDTH = 1200, CANVAS_PNG_SCALE = 2 };

typedef struct color {
    double red, green, blue;
} color_t;

typedef enum align { ALIGN_LEFT, ALIGN_CENTER, ALIGN_RIGHT } align_t;

typedef struct canvas {
    cairo_t *cairo;
    cairo_surface_t *surface;
    const char *path; /* borrowed */
    /* The plot area and the range of values on its axes. */
    double left, right, top, bottom;
    double x_min, x_max, y_min, y_max;
} canvas_t;

/* Begins a picture; the suffix of `path` (.svg or .png) chooses the kind, STATUS_USAGE for another one. Title and
 * subtitle are drawn, the plot area lies below them with room for axes. */
status_t canvas_begin(const char *path, int height, const char *title, const char *subtitle, canvas_t *canvas);

/* Writes the file and frees. STATUS_DEVICE if it cannot be written. */
status_t canvas_end(canvas_t *canvas);

void canvas_text(const canvas_t *canvas, double x, double y, align_t align, double size, const char *text);
void canvas_box(const canvas_t *canvas, double x, double y, double width, double height, color_t color);
void canvas_line(const canvas_t *canvas, double x0, double y0, double x1, double y1, double width, color_t color);

/* Places of values on the axes. */
double canvas_x(const canvas_t *canvas, double value);
double canvas_y(const canvas_t *canvas, double value);

/* Draws an axis with round tick values, grid lines across the plot area, and its label. */
void canvas_x_axis(const canvas_t *canvas, const char *label);
void canvas_y_axis(const canvas_t *canvas, const char *label);

#ifdef __cplusplus
}
#endif
#endif
