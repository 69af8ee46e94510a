"""Names of kernels, as profilers tell them and as people say them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brickprof.kernel_names import short

ATEN = "void at::native::"
LAMBDA = "{lambda()#2}::operator()() const::{lambda(float)#1}"


NAMED = [
    (f"{ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::AbsMaxOps<float, float, float>, unsign",
     "reduce_kernel · AbsMaxOps"),
    (f"{ATEN}vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)::{LAMBDA}, ",
     "vectorized_elementwise_kernel · GeluCUDAKernelImpl"),
    (f"{ATEN}elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >(",
     "elementwise_kernel · CUDAFunctor_add"),
    (f"{ATEN}(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::TensorListMetadata"
     "<1>, at::native::(anonymous namespace)::BinaryOpScalarListFuncto",
     "multi_tensor_apply_kernel · BinaryOpScalarListFuncto"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(float*, float const*)",
     "softmax_warp_forward"),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nt_align1>(cutlass_80_simt_sgemm_64x64_8x5_nt_align1::P",
     "Kernel2 · cutlass_80_simt_sgemm_64x64_8x5_nt_align1"),
    ("fmha_cutlassB_f32_aligned_64x64_k32_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm8",
     "fmha_cutlassB_f32_aligned_64x64_k32_sm80"),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm",
     "device_kernel · FlashAttnFwdSm90"),
    ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::gemm::kernel::GemmUniversal<",
     "device_kernel · GemmUniversal"),
    ("void thrust::cuda_cub::core::detail::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<int, lo",
     "_kernel_agent · ParallelForAgent"),
    ("void mine::Trainer<float, mine::Layout<4, 8>, mine::Policy<true>>::forward_step<4>(float*, float const*, int)",
     "forward_step"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "said"), NAMED)
def test_the_function_and_what_it_was_made_for(name, said):
    assert short(name) == said


@pytest.mark.parametrize(
    "name",
    ["std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false>(int)",
     "{lambda" * 5000, "triton_poi_fused_add_3", "Memset (Device)", "elementwise_kernel<add>", "", "operator()",
     "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel"],
)  # fmt: skip
def test_a_plain_name_stays(name):
    assert short(name) == name


@given(st.text(max_size=400))
def test_any_text_has_a_name_that_is_no_longer(text):
    assert len(short(text)) <= len(text) + 3
    assert bool(short(text)) == bool(text)
