# fusegrad_kernels(<file>...): adds CPU kernels to the library.
#
# They are built for this machine's processor (FUSEGRAD_NATIVE), and they are the only sources that see Eigen, under a
# namespace of their own, so that a program's own Eigen, built with other flags, is never mixed with ours. Nothing reads
# the floating-point exception flags; while they must be kept, a loop with a selection in it does not vectorise.
function(fusegrad_kernels)
  target_sources(fusegrad PRIVATE ${ARGN})
  # GCC takes the undefined register inside its own AVX-512 intrinsics for a mistake of ours (GCC bug 105593), and
  # warns whenever a vector type is a template argument.
  set(quiet "$<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized;-Wno-maybe-uninitialized;-Wno-ignored-attributes>")
  # Clang warns, whatever the flags, of each loop marked as independent that it leaves scalar all the same.
  list(APPEND quiet "$<$<CXX_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>")
  set_source_files_properties(${ARGN} TARGET_DIRECTORY fusegrad PROPERTIES
    COMPILE_OPTIONS "-fno-trapping-math;$<$<BOOL:${FUSEGRAD_NATIVE}>:-march=native>;${quiet}"
    COMPILE_DEFINITIONS "Eigen=fusegrad_eigen;EIGEN_DONT_PARALLELIZE")
endfunction()
