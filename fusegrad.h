// Everything that a program needs: #include <fusegrad/fusegrad.h>.
#pragma once

#include <fusegrad/autograd/context.h>
#include <fusegrad/autograd/dtype.h>
#include <fusegrad/autograd/error.h>
#include <fusegrad/autograd/gradient_check.h>
#include <fusegrad/autograd/parameter.h>
#include <fusegrad/autograd/random.h>
#include <fusegrad/autograd/shape.h>
#include <fusegrad/autograd/tape.h>
#include <fusegrad/autograd/tensor.h>
#include <fusegrad/io/csv.h>
#include <fusegrad/io/data_loader.h>
#include <fusegrad/io/dataset.h>
#include <fusegrad/io/idx.h>
#include <fusegrad/io/weights.h>
#include <fusegrad/nn/initializers.h>
#include <fusegrad/nn/linear_layer.h>
#include <fusegrad/nn/mlp.h>
#include <fusegrad/ops/activation.h>
#include <fusegrad/ops/arithmetic.h>
#include <fusegrad/ops/linear.h>
#include <fusegrad/ops/loss_options.h>
#include <fusegrad/ops/mse_loss.h>
#include <fusegrad/ops/reduction.h>
#include <fusegrad/ops/reshape.h>
#include <fusegrad/ops/softmax_cross_entropy.h>
