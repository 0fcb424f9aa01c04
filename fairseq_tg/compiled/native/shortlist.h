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

// The tokens that may come next, with their part of the output projection; or all of them
struct Choices {
  std::vector<int> tokens;  // in their order; none stands for all
  Matrix output;
  int vocabulary, pad, eos, unk;  // how many there are, and where these are among them

  // All tokens
  Choices(int count, int pad_token, int eos_token, int unk_token)
      : vocabulary(count), pad(pad_token), eos(eos_token), unk(unk_token) {}

  // What a source brings, special symbols and, if there is a prefix, its tokens
  Choices(const Choices& all, const Shortlist& shortlist, const Matrix& full, const int32_t* source, int length,
          const int32_t* prefix, int prefix_length) {
    tokens = {all.pad, all.eos, all.unk};
    tokens.insert(tokens.end(), prefix, prefix + prefix_length);
    for (int i = 0; i < length; ++i)
      tokens.insert(tokens.end(), shortlist.tokens.begin() + shortlist.starts[source[i]],
                    shortlist.tokens.begin() + shortlist.starts[source[i] + 1]);
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    output = full.take(tokens);
    vocabulary = static_cast<int>(tokens.size());
    pad = place(all.pad);
    eos = place(all.eos);
    unk = place(all.unk);
  }

  int token(int place) const { return tokens.empty() ? place : tokens[place]; }
  int place(int token) const {
    if (tokens.empty()) return token;
    return static_cast<int>(std::lower_bound(tokens.begin(), tokens.end(), token) - tokens.begin());
  }
};

}  // namespace tg
