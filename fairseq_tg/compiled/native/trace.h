// What happens inside a decoder while it goes over a given translation, for whoever wants to see it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tg {

struct TraceRequest {  // as in library.py: one sentence and its translation, each with its end
  const int32_t* source;
  const int32_t* target;
  int32_t source_length, target_length, likeliest, base, first;
};

struct TraceResults {    // as in library.py; for each token of the translation
  float* actions;        // of each place, in the order of a step: |action| / |state|
  float* attention;      // of each layer: the weight of each source token, over all heads
  int32_t* tokens;       // the likeliest at this place
  float* probabilities;  // of these
  int32_t places, layers;
};

class Trace {
 public:
  Trace(const TraceRequest& request, const TraceResults& results) : request_(request), results_(results) {}
  void begin_step(int step) {
    step_ = step;
    place_ = layer_ = 0;
  }
  // Zeros to which the next layer's weights are added; null if there is no room for them
  float* next_attention() {
    if (layer_ >= results_.layers) return nullptr;
    return results_.attention +
           (static_cast<size_t>(step_) * results_.layers + layer_++) * static_cast<size_t>(request_.source_length);
  }
  void attended(const float* weights, int n) {
    if (float* to = next_attention()) std::copy_n(weights, n, to);
  }
  // The next place's action on the state h made `after` of `before`
  void acted(const float* h, const float* before, const float* after, int n) {
    if (place_ >= results_.places) return;
    double action = 0., state = 0.;
    for (int i = 0; i < n; ++i) {
      action += static_cast<double>(after[i] - before[i]) * (after[i] - before[i]);
      state += static_cast<double>(h[i]) * h[i];
    }
    results_.actions[static_cast<size_t>(step_) * results_.places + place_++] =
        state > 0. ? static_cast<float>(std::sqrt(action / state)) : 0.f;
  }

 private:
  const TraceRequest& request_;
  const TraceResults& results_;
  int step_ = 0, place_ = 0, layer_ = 0;
};

}  // namespace tg
