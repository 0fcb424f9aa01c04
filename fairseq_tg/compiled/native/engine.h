// What Python calls (fairseq_tg/compiled/engine.py). Any number of threads may translate with one model at once.
#pragma once

#include <atomic>
#include <thread>
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "fconv.h"
#include "forced.h"
#include "lstm.h"
#include "search.h"
#include "transformer.h"

namespace tg {

constexpr size_t kInterface = 2;  // as in library.py: counts changes that the sizes of structures do not show

enum FamilyKind { kTransformer = 0, kLstm = 1, kFconv = 2 };  // as in layout.py

struct Model {
  const Model* base = nullptr;
  Tensors tensors;
  Shortlist own_shortlist;
  std::unique_ptr<Family> family;
  std::string missing;

  void connect() {
    try {
      switch (tensors.integer("family")) {
        case kTransformer:
          family = std::make_unique<Transformer>(tensors);
          break;
        case kLstm:
          family = std::make_unique<Lstm>(tensors);
          break;
        case kFconv:
          family = std::make_unique<Fconv>(tensors);
          break;
        default:
          missing = "family";
      }
    } catch (const Missing& error) {
      missing = error.what();
    }
  }
  const Shortlist& shortlist() const { return base ? base->shortlist() : own_shortlist; }
  Words words() const {
    return {tensors.integer("vocabulary"), tensors.integer("pad"), tensors.integer("eos"), tensors.integer("unk")};
  }
};

// Sentences from `first` to `end` of a batch, whose tokens begin at `token`
struct Share {
  int first, end;
  size_t token;
  Request of(const Request& all) const {
    Request request = all;
    request.tokens += token;
    request.lengths += first;
    request.limits += first;
    if (request.prefix) request.prefix += static_cast<size_t>(first) * all.prefix_length;
    request.batch = end - first;
    return request;
  }
  Results of(const Results& all, int nbest) const {
    const size_t hypotheses = static_cast<size_t>(first) * nbest, tokens = hypotheses * all.stride;
    return {all.tokens + tokens, all.lengths + hypotheses, all.scores ? all.scores + hypotheses : nullptr,
            all.positional ? all.positional + tokens : nullptr, all.stride};
  }
};

// What each thread searches by itself, waiting for no other: neighbours, of about as many tokens. Where the weights are
// more than a processor's caches hold, reading them for a few rows is what takes time: then all threads take part in
// every product.
inline std::vector<Share> shares(const Request& request, int threads, size_t weights) {
  constexpr size_t cached = size_t{16} << 20;
  const int64_t rows = static_cast<int64_t>(request.batch) * request.beam, least = weights > cached ? 16 : 1;
  const int count = request.batch >= threads && rows >= least * threads ? threads : 1;
  size_t tokens = 0, before = 0;
  for (int b = 0; b < request.batch; ++b) tokens += request.lengths[b];
  std::vector<Share> found{{0, 0, 0}};
  for (int b = 0; b < request.batch; ++b) {
    const int begun = static_cast<int>(found.size());
    const bool full = before * count >= tokens * begun, needed = request.batch - b <= count - begun;
    if (begun < count && b > found.back().first && (full || needed)) found.push_back({b, b, before});
    found.back().end = b + 1;
    before += request.lengths[b];
  }
  return found;
}

inline int64_t process() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;  // where none forks
#endif
}

// Among how many threads a product may be shared. They are OpenMP's, which stay behind when a process forks: what is
// forked of one that has had them would wait for them for ever.
inline int sharing(int threads) {
  if (threads < 2) return threads;
  static const int64_t first = process();
  return process() == first ? threads : 1;
}

// Runs f; 0 if it ended well, 1 if not, which is when there is not enough memory. No exception may reach the caller.
template <class F>
int guarded(F f) {
  try {
    f();
    return 0;
  } catch (...) {
    return 1;
  }
}

}  // namespace tg

extern "C" {

// Tells a library from one that Python would talk to otherwise: changes with every structure below
int tg_interface() {
  return static_cast<int>(tg::kInterface << 16 | sizeof(tg::Request) << 8 | sizeof(tg::TraceRequest));
}

// Whether this machine can run the library built for AVX2 (asked of the one that runs anywhere)
int tg_has_avx2() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return 0;
#endif
}

// Whether it can run the one built for AVX-512 and VNNI
int tg_has_avx512() {
#if defined(__x86_64__) || defined(__i386__)
  return tg_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return 0;
#endif
}

// A model without tensors, or null. What it is not given it takes from `base`, if that is not null: it has to stay.
tg::Model* tg_new(const tg::Model* base) {
  tg::Model* model = nullptr;
  tg::guarded([&] {
    model = new tg::Model();
    model->base = base;
    model->tensors.base = base ? &base->tensors : nullptr;
  });
  return model;
}

void tg_free(tg::Model* model) { delete model; }

// A size or an option
int tg_number(tg::Model* model, const char* name, double value) {
  return tg::guarded([&] { model->tensors.numbers[name] = value; });
}

// Weights of a linear map: packed, so the caller's memory is free afterwards. `scales` is null for float32.
int tg_matrix(tg::Model* model, const char* name, const void* data, const float* scales, const float* bias, int rows,
              int cols) {
  return tg::guarded([&] {
    auto matrix = scales ? tg::Matrix::pack(static_cast<const int8_t*>(data), scales, rows, cols)
                         : tg::Matrix::pack(static_cast<const float*>(data), rows, cols);
    if (bias) std::copy(bias, bias + rows, matrix.bias.begin());
    model->tensors.matrices[name] = std::move(matrix);
  });
}

// Embeddings and positions stay where they are: the caller keeps the memory.
int tg_embedding(tg::Model* model, const char* name, const void* data, const float* scales, int rows, int cols) {
  return tg::guarded([&] {
    tg::Embedding& e = model->tensors.embeddings[name];
    e.dim = cols;
    if (scales) {
      e.quantized = static_cast<const int8_t*>(data);
      e.scales.assign(scales, scales + rows);
    } else {
      e.table = static_cast<const float*>(data);
    }
  });
}

// Embeddings that are the rows of a matrix of this model
int tg_tied_embedding(tg::Model* model, const char* name, const char* matrix) {
  return tg::guarded([&] {
    const tg::Matrix& tied = model->tensors.matrices.at(matrix);
    tg::Embedding& e = model->tensors.embeddings[name];
    e.matrix = &tied;
    e.dim = tied.cols;
  });
}

int tg_positions(tg::Model* model, const char* name, const float* data) {
  return tg::guarded([&] { model->tensors.tables[name] = data; });
}

int tg_norm(tg::Model* model, const char* name, const float* weight, const float* bias, int size) {
  return tg::guarded([&] { model->tensors.norms[name] = tg::Norm{{weight, weight + size}, {bias, bias + size}}; });
}

// What source tokens bring: see shortlist.h
int tg_shortlist(tg::Model* model, const int32_t* starts, int source_vocabulary, const int32_t* tokens) {
  return tg::guarded([&] {
    model->own_shortlist.starts.assign(starts, starts + source_vocabulary + 1);
    model->own_shortlist.tokens.assign(tokens, tokens + starts[source_vocabulary]);
  });
}

// The name of a tensor that is not there, or null when the model is complete
const char* tg_connect(tg::Model* model) {
  if (tg::guarded([&] { model->connect(); })) return "memory";
  return model->missing.empty() ? nullptr : model->missing.c_str();
}

int tg_search(const tg::Model* model, const tg::Request* request, int threads, const tg::Results* results) {
  const tg::Shortlist none;
  const auto search = [&](const tg::Request& wanted, const tg::Results& found, int helping) {
    return tg::guarded([&] {
      auto decoder = model->family->decoder(tg::sharing(helping));
      decoder->acting().enabled = !request->base;
      tg::Search(model->words(), request->all ? none : model->shortlist(), wanted, found).run(*decoder);
    });
  };
  std::vector<tg::Share> shares;
  if (tg::guarded([&] { shares = tg::shares(*request, threads, model->tensors.weights()); })) return 1;
  if (shares.size() < 2) return search(*request, *results, threads);
  std::atomic<int> failed{0};
  const auto search_share = [&](size_t i) {
    failed |= search(shares[i].of(*request), shares[i].of(*results, request->nbest), 1);
  };
  // Not OpenMP's threads: these wait for work in vain, and are lost to a process that forks
  std::vector<std::thread> helpers;
  size_t begun = 1;
  tg::guarded([&] {
    for (; begun < shares.size(); ++begun) helpers.emplace_back(search_share, begun);
  });
  search_share(0);
  for (; begun < shares.size(); ++begun) search_share(begun);  // for which there was no thread
  for (auto& helper : helpers) helper.join();
  return failed;
}

// What happens on the way to a given translation
int tg_trace(const tg::Model* model, const tg::TraceRequest* request, const tg::TraceResults* results) {
  return tg::guarded([&] { tg::trace_translation(*request, *results, *model->family->decoder(1)); });
}
}
