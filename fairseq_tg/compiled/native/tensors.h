// The tensors and numbers of a model by their names, as Python gives them (fairseq_tg/compiled/layout.py says which).
#pragma once

#include <map>
#include <stdexcept>
#include <string>

#include "layers.h"
#include "product.h"

namespace tg {

struct Embedding {
  const float* table = nullptr;
  const int8_t* quantized = nullptr;
  std::vector<float> scales;
  int dim = 0;
  void look_up(int token, float scale, float* y) const {
    const size_t at = static_cast<size_t>(token) * dim;
    for (int i = 0; i < dim; ++i) y[i] = table ? table[at + i] * scale : quantized[at + i] * (scales[token] * scale);
  }
};

// What a family asks for and is not there
struct Missing : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Tensors {
  std::map<std::string, Matrix> matrices;
  std::map<std::string, Norm> norms;
  std::map<std::string, Embedding> embeddings;
  std::map<std::string, const float*> tables;  // positions
  std::map<std::string, double> numbers;       // sizes and options

  const Matrix* matrix(const std::string& name) const { return &get(matrices, name); }
  const Norm* norm(const std::string& name) const { return &get(norms, name); }
  const Embedding* embedding(const std::string& name) const { return &get(embeddings, name); }
  float number(const std::string& name) const { return static_cast<float>(get(numbers, name)); }
  int integer(const std::string& name) const { return static_cast<int>(get(numbers, name)); }

  bool has_matrix(const std::string& name) const { return matrices.count(name) > 0; }
  const Norm* norm_or_null(const std::string& name) const { return norms.count(name) ? &norms.at(name) : nullptr; }
  const float* table_or_null(const std::string& name) const { return tables.count(name) ? tables.at(name) : nullptr; }

 private:
  template <class T>
  static const T& get(const std::map<std::string, T>& all, const std::string& name) {
    auto it = all.find(name);
    if (it == all.end()) throw Missing(name);
    return it->second;
  }
};

}  // namespace tg
