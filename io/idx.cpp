#include <filesystem>
#include <vector>

#include <fusegrad/autograd/check.h>
#include <fusegrad/io/idx.h>
#include <fusegrad/io/idx_file.h>

namespace fusegrad {
namespace {

using detail::IdxFile;
using detail::require;

std::string find_file(const std::string& directory, const std::string& stem, const std::string& format) {
  for (const char* separator : {"-", "."}) {
    for (const char* packing : {"", ".gz"}) {
      std::string path = directory + "/" + stem + separator + format + packing;
      std::error_code ignored;  // what cannot be looked at is not there
      if (std::filesystem::exists(path, ignored)) return path;
    }
  }
  throw IoError(detail::format("read_idx: there is no {}-{} in \"{}\", with or without .gz", stem, format, directory));
}

}  // namespace

Dataset read_idx(const std::string& images_path, const std::string& labels_path) {
  IdxFile images("read_idx", images_path);
  IdxFile labels("read_idx", labels_path);
  require<IoError>(images.extents().size() >= 2, "read_idx: \"{}\" has one axis; images have two or more", images_path);
  require<IoError>(labels.extents().size() == 1, "read_idx: \"{}\" has {} axes; labels have one", labels_path,
                   labels.extents().size());
  const std::int64_t rows = images.extents()[0];
  require<IoError>(rows == labels.count(), "read_idx: \"{}\" has {} images, but \"{}\" has {} labels", images_path,
                   rows, labels_path, labels.count());
  require<IoError>(rows > 0, "read_idx: \"{}\" has no images", images_path);

  const Context host = Context::cpu({.threads = 1});
  Tensor classes = Tensor::empty(host, {rows}, Dtype::f64);  // holds every element type exactly
  labels.read(classes.mutable_data<double>());
  Tensor features = Tensor::empty(host, {rows, images.count() / rows}, Dtype::f32);
  images.read(features.mutable_data<float>());
  return Dataset::classification(std::move(features), classes);
}

Dataset read_idx_directory(const std::string& directory, IdxPart part) {
  const std::string prefix = part == IdxPart::train ? "train" : "t10k";
  const std::string images = find_file(directory, prefix + "-images", "idx3-ubyte");
  return read_idx(images, find_file(directory, prefix + "-labels", "idx1-ubyte"));
}

}  // namespace fusegrad
