// Datasets from IDX files, the format of MNIST and its relatives.
//
//   fusegrad::Dataset train = fusegrad::read_idx_directory("mnist", fusegrad::IdxPart::train).scaled(255);
#pragma once

#include <cstdint>
#include <string>

#include <fusegrad/io/dataset.h>

namespace fusegrad {

/// Reads images and their labels, each from a plain or a gzip file. Features are the stored numbers: divide the bytes
/// of MNIST by 255 with scaled().
/// Shapes: images [n, ...], flattened to [n, features]; labels [n].
/// Types:  elements u8, i8, i16, i32, f32 or f64; features are rounded once to f32.
/// Memory: the dataset's own; nothing is allocated before sizes announced in a file are checked against its length.
/// Errors: IoError, with the file, if one cannot be read, is no IDX file, is truncated, longer than its header says or
///         damaged, or if the two do not fit together or are empty; ValueError as Dataset::classification.
Dataset read_idx(const std::string& images_path, const std::string& labels_path);

/// Which part of a dataset that comes divided into two.
enum class IdxPart : std::uint8_t { train, test };

/// Reads train-images-idx3-ubyte and train-labels-idx1-ubyte from a directory, or their t10k- counterparts; a dot
/// before idx and a final .gz are fine. Errors: as read_idx; IoError if there is no such file.
Dataset read_idx_directory(const std::string& directory, IdxPart part);

}  // namespace fusegrad
