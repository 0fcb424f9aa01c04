// A decoder led along a given translation.
#pragma once

#include "actor.h"
#include "candidates.h"

namespace tg {

inline void trace_translation(const TraceRequest& request, const TraceResults& results, Decoder& decoder) {
  Trace trace(request, results);
  decoder.acting().trace = &trace;
  decoder.acting().enabled = !request.base;
  decoder.begin(Sources{request.source, {0, request.source_length}});
  std::vector<float> logits(decoder.output().rows);
  Candidates likeliest;
  const int vocabulary = static_cast<int>(logits.size());
  Rows rows;
  int last = request.first;
  for (int step = 0; step < request.target_length; ++step) {
    rows.clear();
    rows.step = step;
    rows.add(0, last, 0);
    trace.begin_step(step);
    decoder.project(decoder.output(), decoder.step(rows), 1, logits.data());
    likeliest.begin(request.likeliest);
    likeliest.scan(logits.data(), vocabulary, 0, -log_sum_exp(logits.data(), vocabulary));
    const auto& found = likeliest.sorted();
    for (size_t i = 0; i < found.size(); ++i) {
      const size_t at = static_cast<size_t>(step) * request.likeliest + i;
      results.tokens[at] = found[i].token;
      results.probabilities[at] = std::exp(found[i].score);
    }
    last = request.target[step];
  }
}

}  // namespace tg
