// What a sentence's translation may be made of: every token of the source brings some. As if all others had the
// probability zero: the softmax is over these.
#pragma once

#include <algorithm>
#include <vector>

#include "product.h"

namespace tg {

struct Shortlist {
  std::vector<int32_t> starts, tokens;  // what source token t brings is tokens[starts[t]] up to starts[t + 1]
  bool empty() const { return starts.empty(); }
};

// The tokens that may come next
struct Choices {
  std::vector<int> tokens;        // in their order; none stands for all
  Matrix output;                  // their part of the output projection, if it is used
  int vocabulary, pad, end, unk;  // how many there are, and where these are among them

  // All tokens
  Choices(int count, int pad_token, int end_token, int unk_token)
      : vocabulary(count), pad(pad_token), end(end_token), unk(unk_token) {}

  // What a source brings, special symbols and, if there is a prefix, its tokens
  Choices(const Choices& all, int eos, const Shortlist& shortlist, const int32_t* source, int length,
          const int32_t* prefix, int prefix_length) {
    tokens = {all.pad, eos, all.end, all.unk};
    tokens.insert(tokens.end(), prefix, prefix + prefix_length);
    for (int i = 0; i < length; ++i)
      tokens.insert(tokens.end(), shortlist.tokens.begin() + shortlist.starts[source[i]],
                    shortlist.tokens.begin() + shortlist.starts[source[i] + 1]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    vocabulary = static_cast<int>(tokens.size());
    pad = place(all.pad);
    end = place(all.end);
    unk = place(all.unk);
  }

  // Of the logits of all tokens, those of these
  void keep(float* logits) const {
    for (size_t i = 0; i < tokens.size(); ++i) logits[i] = logits[tokens[i]];  // in whose order nothing is lost
  }
  int token(int place) const { return tokens.empty() ? place : tokens[place]; }
  int place(int token) const {
    if (tokens.empty()) return token;
    return static_cast<int>(std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin());
  }
};

}  // namespace tg
