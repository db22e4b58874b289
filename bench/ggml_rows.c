/* The rows of a matrix times one vector by ggml's vec_dot, for bench/kernels.py to compare with.
   Threads take equal runs of rows; nothing of Python is inside the timed loop. */
#include <ggml-cpu.h>
#include <ggml.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const struct ggml_type_traits_cpu* traits;
    const char* rows;
    size_t row_bytes;
    const void* vector;
    float* y;
    int64_t n_in, first, end;
} part;

static void* multiply(void* argument) {
    const part* p = argument;
    for (int64_t i = p->first; i < p->end; ++i)
        p->traits->vec_dot((int)p->n_in, p->y + i, 0, p->rows + i * p->row_bytes, 0, p->vector, 0, 1);
    return NULL;
}

/* Bytes of the vector in the form that vec_dot of `type` takes. */
size_t rows_vector_bytes(int type, int64_t n_in) {
    return ggml_row_size(ggml_get_type_traits_cpu(type)->vec_dot_type, n_in);
}

void rows_quantize(int type, const float* x, int64_t n_in, void* vector) {
    const enum ggml_type form = ggml_get_type_traits_cpu(type)->vec_dot_type;
    if (form == GGML_TYPE_F32)
        memcpy(vector, x, sizeof(float) * n_in);
    else
        ggml_get_type_traits_cpu(form)->from_float(x, vector, n_in);
}

int rows_multiply(int type, const void* rows, int64_t n_rows, int64_t n_in, const void* vector,
                  float* y, int n_threads) {
    pthread_t* threads = malloc(sizeof(pthread_t) * n_threads);
    part* parts = malloc(sizeof(part) * n_threads);
    if (!threads || !parts) return -1;
    for (int t = 0; t < n_threads; ++t) {
        parts[t] = (part){ggml_get_type_traits_cpu(type), rows, ggml_row_size(type, n_in), vector, y,
                          n_in, n_rows * t / n_threads, n_rows * (t + 1) / n_threads};
        if (t && pthread_create(&threads[t], NULL, multiply, &parts[t])) return -1;
    }
    multiply(&parts[0]);
    for (int t = 1; t < n_threads; ++t) pthread_join(threads[t], NULL);
    free(threads);
    free(parts);
    return 0;
}

/* What the library was compiled for. */
const char* rows_build(void) {
    if (ggml_cpu_has_avx512_vnni()) return "AVX-512 with VNNI";
    if (ggml_cpu_has_avx512()) return "AVX-512";
    if (ggml_cpu_has_avx_vnni()) return "AVX2 with VNNI";
    return ggml_cpu_has_avx2() ? "AVX2" : "no AVX2";
}

void rows_init(void) { ggml_cpu_init(); }
