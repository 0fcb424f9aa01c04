// What Python calls (fairseq_tg/compiled/engine.py). Any number of threads may translate with one model at once.
#pragma once

#include "decode.h"

extern "C" {

// Whether this machine can run the library built for AVX2 (asked of the one that runs anywhere)
int tg_has_avx2() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

tg::Model* tg_new(const tg::Config* config) {
  auto* model = new tg::Model();
  model->config = *config;
  return model;
}

void tg_free(tg::Model* model) { delete model; }

// Weights of a linear map: packed, so the caller's memory is free afterwards. `scales` is null for float32.
void tg_matrix(tg::Model* model, const char* name, const void* data, const float* scales, const float* bias, int rows,
               int cols) {
  auto matrix = scales ? tg::Matrix::pack(static_cast<const int8_t*>(data), scales, rows, cols)
                       : tg::Matrix::pack(static_cast<const float*>(data), rows, cols);
  if (bias) std::copy(bias, bias + rows, matrix.bias.begin());
  model->matrices[name] = std::move(matrix);
}

// Embeddings and positions stay where they are: the caller keeps the memory.
void tg_embedding(tg::Model* model, const char* name, const void* data, const float* scales, int rows, int cols) {
  tg::Embedding& e = model->embeddings[name];
  e.dim = cols;
  if (scales) {
    e.quantized = static_cast<const int8_t*>(data);
    e.scales.assign(scales, scales + rows);
  } else {
    e.table = static_cast<const float*>(data);
  }
}

void tg_positions(tg::Model* model, const char* name, const float* data) { model->tables[name] = data; }

void tg_norm(tg::Model* model, const char* name, const float* weight, const float* bias, int size) {
  model->norms[name] = tg::Norm{{weight, weight + size}, {bias, bias + size}};
}

// The name of a tensor that is not there, or null when the model is complete
const char* tg_connect(tg::Model* model) {
  model->connect();
  return model->missing.empty() ? nullptr : model->missing.c_str();
}

// 0, or 1 when there is not enough memory
int tg_translate(const tg::Model* model, const tg::Call::Request* request, int threads, int32_t* out, int stride,
                 int32_t* out_lengths, float* scores) {
  try {
    tg::Call(*model, threads).translate(*request, out, stride, out_lengths, scores);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}
}
