// The weights of a model in a file.
//
//   fusegrad::save_weights("digits.safetensors", net.parameters());
//   fusegrad::load_weights("digits.safetensors", net.parameters());
//
// The format is safetensors (https://huggingface.co/docs/safetensors), which PyTorch, JAX and others read and write.
// A tensor has its parameter's name and shape and what an optimizer steps, Parameter::master(): F64 for f64
// parameters, F32 for f32, bf16 and f16 ones. So a training that goes on from the file is the same to the last bit,
// and whoever wants 16-bit weights rounds them, to nearest even, as fusegrad does.
#pragma once

#include <string>

#include <fusegrad/autograd/parameter.h>

namespace fusegrad {

struct WeightsOptions {
  /// Otherwise a weight that is infinite or NaN is an error: a run that diverged must not replace a good file.
  bool allow_non_finite = false;
};

/// Writes every parameter of the set, in its order; the same weights give the same bytes.
/// The file appears complete or not at all: it is written to a temporary in the same directory, synchronised with the
/// disk and renamed, so that after a failure, or a crash at any moment, `path` holds the old file or the new one. A
/// crash may leave a temporary, `path`.tmp.*, which may be deleted.
/// Errors: ValueError for a weight that is not finite, with its parameter, or a name that the format cannot hold (not
///         UTF-8, or "__metadata__"); IoError, with the file and the call that failed: the old file is intact, unless
///         the message says that its directory could not be synchronised.
void save_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options = {});

/// Reads every parameter of the set, found by name, from a file that holds exactly these. Either all are replaced or,
/// on an error, none is touched; gradients stay as they are.
/// Types:  the file's tensors have the type of the parameters' master weights, as above, or of the parameters: masters
///         are then the 16-bit values, widened.
/// Memory: the weights, once more; nothing is allocated before sizes announced in the file are checked against its
///         length.
/// Errors: IoError, with the file, if it cannot be read or breaks a rule of the format: a header of at most 16 MiB,
///         each key once, offsets that cover the data without gap or overlap, sizes that agree with shape and type;
///         ValueError for a tensor that is missing, that no parameter is named after, or that has a value which is not
///         finite, or too large for the parameter's type; ShapeError and DtypeError for one that does not fit its
///         parameter.
void load_weights(const std::string& path, const ParameterSet& parameters, const WeightsOptions& options = {});

}  // namespace fusegrad
