#include <algorithm>
#include <cstring>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/csv_rows.h>

namespace fusegrad::detail {
namespace {

constexpr std::size_t kFirstBuffer = std::size_t{1} << 16;
constexpr std::size_t kLongestRow = std::size_t{1} << 26;

constexpr bool is_space(char c) { return c == ' ' || c == '\t'; }

}  // namespace

CsvRows::CsvRows(InputFile& file, char delimiter) : file_(file), delimiter_(delimiter), buffer_(kFirstBuffer) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  while (size_ < kByteOrderMark.size() && refill()) {
  }
  if (std::string_view(buffer_.data(), size_).starts_with(kByteOrderMark)) cursor_ = kByteOrderMark.size();
}

bool CsvRows::next() {
  do {
    if (!scan_row()) return false;
    fields_.clear();
    for (const Span& span : spans_) take_field(span);
  } while (fields_.size() == 1 && fields_[0].empty());
  return true;
}

/// Finds the end of the row and the borders of its fields; false if there is no row left.
bool CsvRows::scan_row() {
  enum class State : std::uint8_t { field_start, plain, quoted, after_quote };
  begin_ = cursor_;
  line_ = next_line_;
  spans_.clear();
  if (at_end()) return false;

  State state = State::field_start;
  std::size_t field = 0;
  while (!at_end()) {
    const char c = buffer_[cursor_++];
    if (state == State::quoted) {
      if (c == '"') state = State::after_quote;
      if (c == '\n') ++next_line_;
    } else if (c == '"' && state != State::plain) {
      state = State::quoted;  // opens a field, or is the second of a pair within one
    } else if (c == delimiter_) {
      const std::size_t end = cursor_ - begin_ - 1;
      spans_.push_back({field, end});
      field = end + 1;
      state = State::field_start;
    } else if (c == '\n' || c == '\r') {
      spans_.push_back({field, cursor_ - begin_ - 1});
      if (c == '\r' && !at_end() && buffer_[cursor_] == '\n') ++cursor_;
      ++next_line_;
      return true;
    } else if (state != State::field_start || !is_space(c)) {
      state = State::plain;
    }
  }
  if (state == State::quoted) fail("a quoted field is not closed");
  spans_.push_back({field, cursor_ - begin_});
  return true;
}

bool CsvRows::at_end() { return cursor_ == size_ && !refill(); }

/// Reads more of the file behind what is left of the row; false at the end of the file.
bool CsvRows::refill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, size_ - begin_);
    cursor_ -= begin_;
    size_ -= begin_;
    begin_ = 0;
  }
  if (size_ == buffer_.size()) {
    if (size_ >= kLongestRow) fail("the row has more than 64 MiB");
    buffer_.resize(2 * size_);
  }
  const std::size_t got = file_.read_some(buffer_.data() + size_, buffer_.size() - size_);
  size_ += got;
  return got > 0;
}

void CsvRows::take_field(Span raw) {
  char* first = buffer_.data() + begin_ + raw.begin;
  char* last = buffer_.data() + begin_ + raw.end;
  while (first != last && is_space(*first)) ++first;
  while (first != last && is_space(last[-1])) --last;
  if (first != last && *first == '"') {
    // Moves the content onto the opening quote, one quote of each pair left out, up to the closing quote.
    char* to = first;
    char* from = first + 1;
    for (;; ++from) {
      if (*from == '"') {
        ++from;
        if (from == last || *from != '"') break;
      }
      *to++ = *from;
    }
    if (from != last) fail("text follows a closing quote");
    last = to;
  }
  fields_.emplace_back(first, static_cast<std::size_t>(last - first));
}

void CsvRows::fail(std::string_view what) const {
  throw IoError(detail::format("{}: {}, line {}: {}", file_.op(), file_.path(), line_, what));
}

}  // namespace fusegrad::detail
