// The tensors and numbers of a model by their names, as Python gives them (fairseq_tg/compiled/layout.py says which).
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "layers.h"
#include "product.h"

namespace tg {

// A table of one row a token; or the rows of a matrix, which are then in memory once
struct Embedding {
  const Matrix* matrix = nullptr;
  const float* table = nullptr;
  const int8_t* quantized = nullptr;
  std::vector<float> scales;
  int dim = 0;
  void look_up(int token, float scale, float* y) const {
    if (matrix) return matrix->row(token, scale, y);
    const size_t at = static_cast<size_t>(token) * dim;
    for (int i = 0; i < dim; ++i) y[i] = table ? table[at + i] * scale : quantized[at + i] * (scales[token] * scale);
  }
};

// What a family asks for and is not there
struct Missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Those of an actor may be put on a base, whose own they are looked for in after them.
struct Tensors {
  const Tensors* base = nullptr;
  std::map<std::string, Matrix> matrices;
  std::map<std::string, Norm> norms;
  std::map<std::string, Embedding> embeddings;
  std::map<std::string, const float*> tables;  // positions
  std::map<std::string, double> numbers;       // sizes and options

  const Matrix* matrix(const std::string& name) const { return &get(&Tensors::matrices, name); }
  const Norm* norm(const std::string& name) const { return &get(&Tensors::norms, name); }
  const Embedding* embedding(const std::string& name) const { return &get(&Tensors::embeddings, name); }
  float number(const std::string& name) const { return static_cast<float>(get(&Tensors::numbers, name)); }
  int integer(const std::string& name) const { return static_cast<int>(get(&Tensors::numbers, name)); }

  bool has_matrix(const std::string& name) const { return find(&Tensors::matrices, name) != nullptr; }
  const Norm* norm_or_null(const std::string& name) const { return find(&Tensors::norms, name); }
  const float* table_or_null(const std::string& name) const {
    const float* const* found = find(&Tensors::tables, name);
    return found ? *found : nullptr;
  }
  // About how many bytes are read again and again: all of the matrices
  size_t weights() const {
    size_t bytes = 0;
    for (const auto& [name, m] : matrices) bytes += m.weights.size() * sizeof(float) + m.quantized.size();
    return std::max(bytes, base ? base->weights() : 0);
  }

 private:
  template <class T>
  const T* find(std::map<std::string, T> Tensors::* all, const std::string& name) const {
    const auto it = (this->*all).find(name);
    if (it != (this->*all).end()) return &it->second;
    return base ? base->find(all, name) : nullptr;
  }
  template <class T>
  const T& get(std::map<std::string, T> Tensors::* all, const std::string& name) const {
    const T* found = find(all, name);
    if (!found) throw Missing(name);
    return *found;
  }
};

}  // namespace tg
