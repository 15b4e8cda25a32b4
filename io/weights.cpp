#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <vector>

#include <fusegrad/autograd/check.h>
#include <fusegrad/autograd/dtype_visit.h>
#include <fusegrad/autograd/parameter_store.h>
#include <fusegrad/io/safetensors.h>
#include <fusegrad/io/weights.h>
#include <fusegrad/io/weights_file.h>

namespace fusegrad {

using detail::FileCalls;
using detail::ParameterSlot;
using detail::ParameterStore;
using detail::require;
using detail::SafetensorsEntry;

namespace {

/// Throws ValueError if a value of a CPU tensor is infinite or NaN.
void check_finite(const std::string& where, const std::string& name, const Tensor& values) {
  detail::visit_floating(values.dtype(), [&]<class T>() {
    const std::span<const T> elements = values.data<T>();
    const auto bad =
        std::ranges::find_if(elements, [](T element) { return !std::isfinite(static_cast<double>(element)); });
    if (bad == elements.end()) return;
    throw ValueError(detail::format("{}: \"{}\" is {} at element {} of {}; .allow_non_finite lets it pass", where, name,
                                    static_cast<double>(*bad), bad - elements.begin(), values.shape().to_string()));
  });
}

std::string header_of(detail::InputFile& file, const std::string& where) {
  using detail::kLengthBytes;
  const std::int64_t size = file.size();
  std::uint64_t length = 0;
  require<IoError>(size >= kLengthBytes, "{} is no safetensors file: it has {} bytes, less than the length of a header",
                   where, size);
  file.read(&length, kLengthBytes);
  const std::int64_t most = std::min(detail::kMostHeaderBytes, size - kLengthBytes);
  require<IoError>(length >= 2 && length <= static_cast<std::uint64_t>(most),
                   "{} is no safetensors file, or one that was cut off: the header must have 2 to {} bytes, the file "
                   "says {}",
                   where, most, length);
  std::string header(length, '\0');
  file.read(header.data(), header.size());
  return header;
}

/// For each entry the slot of its name. Errors unless names, shapes and types agree.
std::vector<std::size_t> match(const std::vector<SafetensorsEntry>& entries, ParameterStore& store,
                               const std::string& where) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < store.slots().size(); ++i) by_name.emplace(store.slot(i).name, i);
  const Dtype master = accumulation_dtype(store.dtype());
  std::vector<std::size_t> matched;
  for (const SafetensorsEntry& entry : entries) {
    const auto found = by_name.find(entry.name);
    require<ValueError>(found != by_name.end(), "{}: no parameter is named \"{}\"", where, entry.name);
    const Shape& shape = store.slot(found->second).shape;
    require<ShapeError>(std::ranges::equal(shape.extents(), entry.shape),
                        "{}: \"{}\" must be {}, as the parameter is, got [{}]", where, entry.name, shape.to_string(),
                        fmt::join(entry.shape, ", "));
    require<DtypeError>(entry.dtype == master || entry.dtype == store.dtype(),
                        "{}: \"{}\" must be {}{}{}, as the parameter is {}, got {}", where, entry.name,
                        detail::safetensors_name(master), master == store.dtype() ? "" : " or ",
                        master == store.dtype() ? "" : detail::safetensors_name(store.dtype()), name_of(store.dtype()),
                        detail::safetensors_name(entry.dtype));
    matched.push_back(found->second);
    by_name.erase(found);
  }
  require<ValueError>(by_name.empty(), "{}: the file has no tensor for the parameter \"{}\"", where,
                      by_name.empty() ? "" : by_name.begin()->first);
  return matched;
}

}  // namespace

void detail::save_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options,
                          FileCalls& calls) {
  const Context host = Context::cpu({.threads = 1});
  std::vector<SafetensorsEntry> entries;
  std::vector<Tensor> values;
  std::int64_t end = 0;
  for (const Parameter& parameter : parameters) {
    const Tensor master = parameter.master();
    values.push_back(master.device().type == DeviceType::cpu ? master : master.to(host));
    if (!options.allow_non_finite) check_finite("save_weights", parameter.name(), values.back());
    const std::span<const std::int64_t> extents = master.shape().extents();
    entries.push_back({.name = parameter.name(),
                       .dtype = master.dtype(),
                       .shape = {extents.begin(), extents.end()},
                       .begin = end,
                       .end = end + master.bytes()});
    end += master.bytes();
  }
  const std::string header = format_header("save_weights", entries);
  OutputFile file("save_weights", path, calls);
  file.write(header.data(), header.size());
  for (const Tensor& value : values) file.write(value.raw(), static_cast<std::size_t>(value.bytes()));
  file.commit();
}

void detail::load_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options,
                          FileCalls& calls) {
  ParameterStore& store = parameters.store();
  const std::string where = detail::format("load_weights: \"{}\"", path);
  InputFile file("load_weights", path, calls);
  const std::string header = header_of(file, where);
  const std::int64_t data_bytes = file.size() - kLengthBytes - static_cast<std::int64_t>(header.size());
  const std::vector<SafetensorsEntry> entries = parse_header(where, header, data_bytes);
  const std::vector<std::size_t> slots = match(entries, store, where);

  // Everything that can fail comes before the first parameter is written.
  struct Staged {
    Tensor master;
    Tensor value;
  };
  const Context host = Context::cpu({.threads = 1});
  std::vector<Staged> staged;
  const Dtype wide = accumulation_dtype(store.dtype());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Tensor read = Tensor::empty(host, store.slot(slots[i]).shape, entries[i].dtype);
    file.read(read.mutable_raw(), static_cast<std::size_t>(read.bytes()));
    if (!options.allow_non_finite) check_finite(where, entries[i].name, read);
    staged.push_back({.master = read.dtype() == wide ? read : read.to(wide), .value = Tensor()});
    if (store.dtype() == wide) continue;
    staged.back().value = read.dtype() == wide ? read.to(store.dtype()) : read;
    if (!options.allow_non_finite) {
      check_finite(detail::format("{}: rounded to {}", where, name_of(store.dtype())), entries[i].name,
                   staged.back().value);
    }
  }
  store.lay_out();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ParameterSlot& slot = store.slot(slots[i]);
    slot.master.copy_from(staged[i].master);
    if (store.dtype() != wide) slot.value.copy_from(staged[i].value);
  }
}

void save_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options) {
  detail::save_weights(path, parameters, options, FileCalls::system());
}

void load_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options) {
  detail::load_weights(path, parameters, options, FileCalls::system());
}

}  // namespace fusegrad
