// Beam search over any decoder, by the rules of fairseq's SequenceGenerator; greedy search is a beam of one.
#pragma once

#include "candidates.h"
#include "decoder.h"
#include "shortlist.h"

namespace tg {

struct Request {           // as in engine.py
  const int32_t* tokens;   // of all sentences, one after another, each with its end
  const int32_t* lengths;  // of each sentence
  const int32_t* limits;   // most tokens of each translation, its end not counted
  const int32_t* prefix;   // first tokens of each translation, pad where there is no more; may be null
  int32_t batch, prefix_length, min_length, beam, nbest, normalize, base, all;
  int32_t first, end;  // what a decoder begins with, and what ends a translation: eos, or the symbol of a language
  float unk_penalty, length_penalty;
};

struct Results {     // as in engine.py; for each sentence `nbest` hypotheses, best first
  int32_t* tokens;   // each with its end, `stride` apart
  int32_t* lengths;  // 0 where there are no more
  float* scores;     // may be null, with `positional`: greedy search then needs no probabilities
  float* positional;
  int32_t stride;
};

struct Words {
  int vocabulary, pad, eos, unk;
};

class Search {
 public:
  Search(const Words& words, const Shortlist& shortlist, const Request& request, const Results& results)
      : words_(words),
        shortlist_(shortlist),
        request_(request),
        results_(results),
        beam_(std::min(request.beam, words.vocabulary - 1)),
        all_(words.vocabulary, words.pad, request.end, words.unk) {}

  void run(Decoder& decoder) {
    Sources sources{request_.tokens, {0}};
    for (int b = 0; b < request_.batch; ++b) sources.starts.push_back(sources.starts.back() + request_.lengths[b]);
    sentences_.resize(request_.batch);
    scores_.assign(request_.batch, 0.f);
    for (int b = 0; b < request_.batch; ++b) {
      std::fill_n(results_.lengths + static_cast<size_t>(b) * request_.nbest, request_.nbest, 0);
      rows_.add(b, request_.first, b);
    }
    if (!results_.scores) close_at_limits();
    if (!rows_.count()) return;
    decoder.begin(sources);
    if (!shortlist_.empty()) shorten(decoder, sources);
    while (rows_.count()) {
      history_.push_back({rows_.token, rows_.parent, scores_});
      const float* features = decoder.step(rows_);
      choose(decoder, features);
      std::swap(rows_, next_rows_);
      std::swap(scores_, next_scores_);
      rows_.step = next_rows_.step + 1;
      if (!results_.scores) close_at_limits();
    }
  }

 private:
  struct Hypothesis {
    int step, row;  // of its last token, before the end
    float total, score;
  };
  struct Sentence {
    std::vector<Hypothesis> finished;
    std::vector<char> ignored;         // fairseq's cands_to_ignore
    std::unique_ptr<Choices> choices;  // if there is a shortlist
  };
  struct Step {
    std::vector<int> token, parent;
    std::vector<float> score;
  };

  // Logits are made and looked at for as many rows at once as stay in a core's cache
  static constexpr size_t kLogits = size_t{1} << 18;

  const Words words_;
  const Shortlist& shortlist_;
  const Request& request_;
  const Results& results_;
  const int beam_;
  const Choices all_;
  bool apart_ = false;  // whether every sentence has an output projection of its own
  Rows rows_, next_rows_;
  std::vector<float> scores_, next_scores_;  // of rows: sums of log-probabilities
  std::vector<Step> history_;
  std::vector<Sentence> sentences_;
  std::vector<float> logits_;
  Candidates candidates_;
  std::vector<char> masked_;

  const Choices& choices(int sentence) const {
    const auto& own = sentences_[sentence].choices;
    return own ? *own : all_;
  }

  void shorten(Decoder& decoder, const Sources& sources) {
    size_t chosen = 0;
    for (int b = 0; b < sources.count(); ++b) {
      const bool forced = request_.prefix != nullptr;
      const int32_t* prefix = forced ? request_.prefix + static_cast<size_t>(b) * request_.prefix_length : nullptr;
      sentences_[b].choices =
          std::make_unique<Choices>(all_, words_.eos, shortlist_, sources.tokens + sources.starts[b], sources.length(b),
                                    prefix, forced ? request_.prefix_length : 0);
      chosen += sentences_[b].choices->vocabulary;
    }
    // Every sentence by itself with its own rows of the output projection, which have to be collected; or all together
    // with all of it: whichever reads less, for every tile of rows
    const auto tiles = [](size_t rows) { return (rows + kTileRows - 1) / kTileRows; };
    apart_ = chosen * (tiles(beam_) + 1) < words_.vocabulary * tiles(static_cast<size_t>(beam_) * sources.count());
    if (apart_)
      for (auto& sentence : sentences_) sentence.choices->output = decoder.output().take(sentence.choices->tokens);
  }

  void choose(Decoder& decoder, const float* features) {
    const int m = rows_.count(), width = decoder.output().cols;
    next_rows_.clear();
    next_scores_.clear();
    for (int first = 0, count; first < m; first += count) {
      const int sentence = rows_.sentence[first];
      const Matrix& output = apart_ ? choices(sentence).output : decoder.output();
      const int most = std::min(m - first, std::max<int>(48, static_cast<int>(kLogits / output.rows)));
      for (count = 1; count < most && !(apart_ && rows_.sentence[first + count] != sentence);) ++count;
      grow(logits_, static_cast<size_t>(count) * output.rows);
      decoder.project(output, features + static_cast<size_t>(first) * width, count, logits_.data());
      for (int r = first; r < first + count; ++r) look_at(r, row(logits_, r - first, output.rows));
    }
  }

  // The logits of a row
  void look_at(int r, float* logits) {
    const int sentence = rows_.sentence[r];
    const Choices& from = choices(sentence);
    if (!apart_) from.keep(logits);
    if (beam_ == 1) return take_best(r, from, logits);
    if (!r || sentence != rows_.sentence[r - 1]) begin_sentence();
    consider(r, from, logits);
    if (r + 1 == rows_.count() || sentence != rows_.sentence[r + 1]) end_sentence(sentence, r);
  }

  // What a row may go on with: the one token that it has to, or -1 for any whose logit is not -inf
  int restrict(int r, const Choices& from, float* logits) const {
    const int sentence = rows_.sentence[r], step = rows_.step;
    logits[from.pad] = -INFINITY;
    logits[from.unk] -= request_.unk_penalty;
    if (step >= request_.limits[sentence]) return request_.end;
    // The least length is not asked for while any sentence of the batch has a prefix
    const bool in_prefix = request_.prefix && step < request_.prefix_length;
    const int forced =
        in_prefix ? request_.prefix[static_cast<size_t>(sentence) * request_.prefix_length + step] : words_.pad;
    if (forced != words_.pad) return forced;
    if (!in_prefix && step < request_.min_length) logits[from.end] = -INFINITY;
    return -1;
  }

  // The beam of one: without scores, no more than an argmax
  void take_best(int r, const Choices& from, float* logits) {
    const float normalizer = results_.scores ? log_sum_exp(logits, from.vocabulary) : 0.f;
    const int forced = restrict(r, from, logits);
    const int place = forced < 0 ? argmax(logits, from.vocabulary) : from.place(forced), token = from.token(place);
    const float score = results_.scores ? scores_[r] + (logits[place] - normalizer) : 0.f;
    if (token == request_.end) {
      finish(rows_.sentence[r], r, score);
      give(rows_.sentence[r]);
    } else {
      go_on(rows_.sentence[r], token, r, score);
    }
  }

  // Without scores a sentence at its limit has nothing left to choose
  void close_at_limits() {
    if (beam_ > 1) return;
    next_rows_.clear();
    next_scores_.clear();
    history_.push_back({rows_.token, rows_.parent, scores_});
    for (int r = 0; r < rows_.count(); ++r) {
      if (rows_.step < request_.limits[rows_.sentence[r]]) {
        go_on(rows_.sentence[r], rows_.token[r], rows_.parent[r], 0.f);
      } else {
        finish(rows_.sentence[r], r, 0.f);
        give(rows_.sentence[r]);
      }
    }
    history_.pop_back();
    next_rows_.step = rows_.step;
    std::swap(rows_, next_rows_);
    std::swap(scores_, next_scores_);
  }

  void begin_sentence() {
    // fairseq takes twice the beam, so that enough are left if one in each row is eos; and never pad
    candidates_.begin(rows_.step ? 2 * beam_ : std::min(2 * beam_, words_.vocabulary - 1));
  }

  void consider(int r, const Choices& from, float* logits) {
    const float normalizer = log_sum_exp(logits, from.vocabulary);
    if (!std::isfinite(normalizer)) return;  // there is nothing to expect of it
    const int forced = restrict(r, from, logits);
    if (forced < 0)
      return candidates_.scan(logits, from.vocabulary, r, scores_[r] - normalizer,
                              from.tokens.empty() ? nullptr : from.tokens.data());
    const bool first = !r || rows_.sentence[r] != rows_.sentence[r - 1];
    const float score = logits[from.place(forced)] + (scores_[r] - normalizer);
    if (forced != request_.end || rows_.step >= request_.limits[rows_.sentence[r]] || !rows_.step)
      return candidates_.add(score, r, forced);
    // A prefix that ends the sentence: fairseq puts the first row in the place of all
    for (int i = 0; first && i < beam_; ++i) candidates_.add(score, r, forced);
  }

  void end_sentence(int index, int last) {
    Sentence& sentence = sentences_[index];
    const int wanted = candidates_.wanted(), step = rows_.step;
    const auto& found = candidates_.sorted();
    const int count = static_cast<int>(found.size());
    sentence.ignored.resize(beam_);
    masked_.assign(count, 0);
    for (int p = 0; p < count; ++p) {
      const bool ignored = p < beam_ && sentence.ignored[p], ends = found[p].token == request_.end && !ignored;
      masked_[p] = ends || ignored;
      if (ends && p < beam_ && static_cast<int>(sentence.finished.size()) < beam_)
        finish(index, found[p].row, found[p].score);
    }
    if (static_cast<int>(sentence.finished.size()) == beam_ || step >= request_.limits[index]) {
      if (sentence.finished.empty()) finish(index, last, -INFINITY);
      return give(index);
    }
    // fairseq goes on with the first `beam` that are not masked, and fills up with those that are, to be ignored. The
    // ones between, whose probability is zero, take up places as they do there, but no time.
    int places = 0;
    for (int p = 0; p < count && places < beam_; ++p)
      if (!masked_[p]) {
        sentence.ignored[places++] = 0;
        go_on(index, found[p].token, found[p].row, found[p].score);
      }
    const int living = places;
    for (int dead = wanted - count; dead > 0 && places < beam_; --dead) sentence.ignored[places++] = 0;
    for (int p = 0; p < count && places < beam_; ++p)
      if (masked_[p]) {
        sentence.ignored[places++] = 1;
        go_on(index, found[p].token, found[p].row, found[p].score);
      }
    if (!living && !places) sentence.ignored.assign(beam_, 0);
    if (next_rows_.sentence.empty() || next_rows_.sentence.back() != index) {  // nothing left to go on with
      if (sentence.finished.empty()) finish(index, last, -INFINITY);
      give(index);
    }
  }

  void go_on(int sentence, int token, int parent, float score) {
    next_rows_.add(sentence, token, parent);
    next_scores_.push_back(score);
  }

  void finish(int sentence, int r, float total) {
    float score = total;
    if (request_.normalize)
      score /= static_cast<float>(std::pow(static_cast<double>(rows_.step + 1), request_.length_penalty));
    sentences_[sentence].finished.push_back({rows_.step, r, total, score});
  }

  // A sentence is done: its hypotheses, best first
  void give(int sentence) {
    auto& finished = sentences_[sentence].finished;
    std::stable_sort(finished.begin(), finished.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    const int count = std::min<int>(static_cast<int>(finished.size()), request_.nbest);
    for (int i = 0; i < count; ++i) {
      const Hypothesis& h = finished[i];
      const size_t at = static_cast<size_t>(sentence) * request_.nbest + i;
      results_.lengths[at] = h.step + 1;
      int32_t* tokens = results_.tokens + at * results_.stride;
      float* positional = results_.positional ? results_.positional + at * results_.stride : nullptr;
      if (results_.scores) results_.scores[at] = h.score;
      tokens[h.step] = request_.end;
      float total = h.total;
      for (int step = h.step, r = h.row; step >= 0; --step) {
        const Step& was = history_[step];
        if (step) tokens[step - 1] = was.token[r];
        if (positional) positional[step] = step ? total - was.score[r] : total;
        total = was.score[r];
        r = was.parent[r];
      }
    }
    finished.clear();
    finished.shrink_to_fit();
    sentences_[sentence].choices.reset();
  }
};

}  // namespace tg
