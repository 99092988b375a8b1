! BSPlib for Fortran 2008: the functions of bsp.h under their names. Use c_loc to pass memory.
!
!     use bsp
!     integer, target :: left
!     call bsp_begin(bsp_nprocs())
!     call bsp_push_reg(c_loc(left), 4)
!     call bsp_sync()
!     call bsp_put(mod(bsp_pid() + 1, bsp_nprocs()), c_loc(me), c_loc(left), 0, 4)
!     call bsp_sync()
!     call bsp_end()
!
! Sizes and offsets are in bytes: default integers, or integer(c_size_t) for areas and messages
! beyond 2 GiB, with one kind for all arguments of a call. Memory that is registered, sent or
! received in place needs the target attribute.
!
! SPDX-License-Identifier: Apache-2.0 OR MIT
module bsp
  use, intrinsic :: iso_c_binding, only: c_int, c_size_t, c_float, c_double, c_char, c_ptr, &
    c_funptr, c_null_char, c_null_ptr, c_loc, c_funloc, c_f_pointer
  implicit none
  private

  public :: bsp_init, bsp_begin, bsp_end, bsp_nprocs, bsp_pid, bsp_abort
  public :: bsp_sync, bsp_time, bsp_dtime, bsp_cputime
  public :: bsp_predict, bsp_s, bsp_l, bsp_g, bsp_nhalf
  public :: bsp_push_reg, bsp_pop_reg, bsp_put, bsp_hpput, bsp_get, bsp_hpget, bsp_direct_get
  public :: bsp_set_tagsize, bsp_send, bsp_hpsend, bsp_qsize, bsp_get_tag, bsp_move, bsp_hpmove
  public :: bsp_bcast, bsp_gather, bsp_scatter, bsp_allgather, bsp_total_exchange
  public :: bsp_reduce, bsp_fold, bsp_scan
  public :: bsp_all, bsp_any, bsp_constant, bsp_sort, bsp_sum, bsp_product, bsp_min, bsp_max
  public :: bsp_sum_prefix, bsp_product_prefix, bsp_min_prefix, bsp_max_prefix
  public :: c_int, c_size_t, c_float, c_double, c_ptr, c_null_ptr, c_loc, c_funloc, c_f_pointer

  interface
    subroutine bsp_begin(maxprocs) bind(c, name="bsp_begin")
      import :: c_int
      integer(c_int), value :: maxprocs
    end subroutine
    subroutine bsp_end() bind(c, name="bsp_end")
    end subroutine
    integer(c_int) function bsp_nprocs() bind(c, name="bsp_nprocs")
      import :: c_int
    end function
    integer(c_int) function bsp_pid() bind(c, name="bsp_pid")
      import :: c_int
    end function
    subroutine bsp_sync() bind(c, name="bsp_sync")
    end subroutine
    real(c_double) function bsp_time() bind(c, name="bsp_time")
      import :: c_double
    end function
    real(c_double) function bsp_dtime() bind(c, name="bsp_dtime")
      import :: c_double
    end function
    real(c_double) function bsp_cputime() bind(c, name="bsp_cputime")
      import :: c_double
    end function
    real(c_double) function bsp_predict(nprocs, work, h) bind(c, name="bsp_predict")
      import :: c_double, c_int
      integer(c_int), value :: nprocs
      real(c_double), value :: work, h
    end function
    real(c_double) function bsp_s() bind(c, name="bsp_s")
      import :: c_double
    end function
    real(c_double) function bsp_l() bind(c, name="bsp_l")
      import :: c_double
    end function
    real(c_double) function bsp_g() bind(c, name="bsp_g")
      import :: c_double
    end function
    integer(c_int) function bsp_nhalf() bind(c, name="bsp_nhalf")
      import :: c_int
    end function
    subroutine bsp_pop_reg(address) bind(c, name="bsp_pop_reg")
      import :: c_ptr
      type(c_ptr), value :: address
    end subroutine
    subroutine init(spmd, argc, argv) bind(c, name="bsp_init")
      import :: c_funptr, c_int, c_ptr
      type(c_funptr), value :: spmd
      integer(c_int), value :: argc
      type(c_ptr), value :: argv
    end subroutine
    subroutine abort_text(text) bind(c, name="bsp_abort_text")
      import :: c_char
      character(kind=c_char), intent(in) :: text(*)
    end subroutine
  end interface

  interface bsp_push_reg
    subroutine push_reg_int(address, nbytes) bind(c, name="bsp_push_reg")
      import :: c_int, c_ptr
      type(c_ptr), value :: address
      integer(c_int), value :: nbytes
    end subroutine
    subroutine push_reg_size(address, nbytes) bind(c, name="mcbsp_push_reg")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: address
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_put
    subroutine put_int(pid, src, dst, offset, nbytes) bind(c, name="bsp_put")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, offset, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine put_size(pid, src, dst, offset, nbytes) bind(c, name="mcbsp_put")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: offset, nbytes
    end subroutine
  end interface

  interface bsp_hpput
    subroutine hpput_int(pid, src, dst, offset, nbytes) bind(c, name="bsp_hpput")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, offset, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine hpput_size(pid, src, dst, offset, nbytes) bind(c, name="mcbsp_hpput")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: offset, nbytes
    end subroutine
  end interface

  interface bsp_get
    subroutine get_int(pid, src, offset, dst, nbytes) bind(c, name="bsp_get")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, offset, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine get_size(pid, src, offset, dst, nbytes) bind(c, name="mcbsp_get")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: offset, nbytes
    end subroutine
  end interface

  interface bsp_hpget
    subroutine hpget_int(pid, src, offset, dst, nbytes) bind(c, name="bsp_hpget")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, offset, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine hpget_size(pid, src, offset, dst, nbytes) bind(c, name="mcbsp_hpget")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: offset, nbytes
    end subroutine
  end interface

  interface bsp_direct_get
    subroutine direct_get_int(pid, src, offset, dst, nbytes) bind(c, name="bsp_direct_get")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, offset, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine direct_get_size(pid, src, offset, dst, nbytes) bind(c, name="mcbsp_direct_get")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: offset, nbytes
    end subroutine
  end interface

  interface bsp_set_tagsize
    subroutine set_tagsize_int(nbytes) bind(c, name="bsp_set_tagsize")
      import :: c_int
      integer(c_int), intent(inout) :: nbytes
    end subroutine
    subroutine set_tagsize_size(nbytes) bind(c, name="mcbsp_set_tagsize")
      import :: c_size_t
      integer(c_size_t), intent(inout) :: nbytes
    end subroutine
  end interface

  interface bsp_send
    subroutine send_int(pid, tag, payload, nbytes) bind(c, name="bsp_send")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, nbytes
      type(c_ptr), value :: tag, payload
    end subroutine
    subroutine send_size(pid, tag, payload, nbytes) bind(c, name="mcbsp_send")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: tag, payload
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_hpsend
    subroutine hpsend_int(pid, tag, payload, nbytes) bind(c, name="bsp_hpsend")
      import :: c_int, c_ptr
      integer(c_int), value :: pid, nbytes
      type(c_ptr), value :: tag, payload
    end subroutine
    subroutine hpsend_size(pid, tag, payload, nbytes) bind(c, name="mcbsp_hpsend")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: pid
      type(c_ptr), value :: tag, payload
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_qsize
    subroutine qsize_int(messages, nbytes) bind(c, name="bsp_qsize")
      import :: c_int
      integer(c_int), intent(out) :: messages
      integer(c_int), intent(inout) :: nbytes
    end subroutine
    subroutine qsize_size(messages, nbytes) bind(c, name="mcbsp_qsize")
      import :: c_int, c_size_t
      integer(c_int), intent(out) :: messages
      integer(c_size_t), intent(inout) :: nbytes
    end subroutine
  end interface

  interface bsp_get_tag
    subroutine get_tag_int(status, tag) bind(c, name="bsp_get_tag")
      import :: c_int, c_ptr
      integer(c_int), intent(inout) :: status
      type(c_ptr), value :: tag
    end subroutine
    subroutine get_tag_size(status, tag) bind(c, name="mcbsp_get_tag")
      import :: c_ptr, c_size_t
      integer(c_size_t), intent(inout) :: status
      type(c_ptr), value :: tag
    end subroutine
  end interface

  interface bsp_move
    subroutine move_int(payload, nbytes) bind(c, name="bsp_move")
      import :: c_int, c_ptr
      type(c_ptr), value :: payload
      integer(c_int), value :: nbytes
    end subroutine
    subroutine move_size(payload, nbytes) bind(c, name="mcbsp_move")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: payload
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  ! Returns the address of the first message and removes it from the queue; -1 if there is none.
  interface bsp_hpmove
    integer(c_int) function hpmove_int(tag, payload) bind(c, name="bsp_hpmove")
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: tag, payload
    end function
  end interface

  interface bsp_bcast
    subroutine bcast_int(root, src, dst, nbytes) bind(c, name="bsp_bcast")
      import :: c_int, c_ptr
      integer(c_int), value :: root, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine bcast_size(root, src, dst, nbytes) bind(c, name="mcbsp_bcast")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: root
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_gather
    subroutine gather_int(root, src, dst, nbytes) bind(c, name="bsp_gather")
      import :: c_int, c_ptr
      integer(c_int), value :: root, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine gather_size(root, src, dst, nbytes) bind(c, name="mcbsp_gather")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: root
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_scatter
    subroutine scatter_int(root, src, dst, nbytes) bind(c, name="bsp_scatter")
      import :: c_int, c_ptr
      integer(c_int), value :: root, nbytes
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine scatter_size(root, src, dst, nbytes) bind(c, name="mcbsp_scatter")
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: root
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_allgather
    subroutine allgather_int(src, dst, nbytes) bind(c, name="bsp_allgather")
      import :: c_int, c_ptr
      type(c_ptr), value :: src, dst
      integer(c_int), value :: nbytes
    end subroutine
    subroutine allgather_size(src, dst, nbytes) bind(c, name="mcbsp_allgather")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_total_exchange
    subroutine total_exchange_int(src, dst, nbytes) bind(c, name="bsp_total_exchange")
      import :: c_int, c_ptr
      type(c_ptr), value :: src, dst
      integer(c_int), value :: nbytes
    end subroutine
    subroutine total_exchange_size(src, dst, nbytes) bind(c, name="mcbsp_total_exchange")
      import :: c_ptr, c_size_t
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_reduce
    subroutine reduce_int(root, op, src, dst, nbytes) bind(c, name="bsp_reduce")
      import :: c_funptr, c_int, c_ptr
      integer(c_int), value :: root, nbytes
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
    end subroutine
    subroutine reduce_size(root, op, src, dst, nbytes) bind(c, name="mcbsp_reduce")
      import :: c_funptr, c_int, c_ptr, c_size_t
      integer(c_int), value :: root
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_fold
    subroutine fold_int(op, src, dst, nbytes) bind(c, name="bsp_fold")
      import :: c_funptr, c_int, c_ptr
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
      integer(c_int), value :: nbytes
    end subroutine
    subroutine fold_size(op, src, dst, nbytes) bind(c, name="mcbsp_fold")
      import :: c_funptr, c_ptr, c_size_t
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  interface bsp_scan
    subroutine scan_int(op, src, dst, nbytes) bind(c, name="bsp_scan")
      import :: c_funptr, c_int, c_ptr
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
      integer(c_int), value :: nbytes
    end subroutine
    subroutine scan_size(op, src, dst, nbytes) bind(c, name="mcbsp_scan")
      import :: c_funptr, c_ptr, c_size_t
      type(c_funptr), value :: op
      type(c_ptr), value :: src, dst
      integer(c_size_t), value :: nbytes
    end subroutine
  end interface

  ! Combine one value of each process: of all processes, or of those up to the caller.
  interface
    integer(c_int) function c_all(own) bind(c, name="bsp_all")
      import :: c_int
      integer(c_int), value :: own
    end function
    integer(c_int) function c_any(own) bind(c, name="bsp_any")
      import :: c_int
      integer(c_int), value :: own
    end function
    integer(c_int) function c_constant(own) bind(c, name="bsp_constantI")
      import :: c_int
      integer(c_int), value :: own
    end function
  end interface

  interface bsp_sort
    integer(c_int) function sortI(own) bind(c, name="bsp_sortI")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function sortR(own) bind(c, name="bsp_sortR")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function sortD(own) bind(c, name="bsp_sortD")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_sum
    integer(c_int) function sumI(own) bind(c, name="bsp_sumI")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function sumR(own) bind(c, name="bsp_sumR")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function sumD(own) bind(c, name="bsp_sumD")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_sum_prefix
    integer(c_int) function sumI_prefix(own) bind(c, name="bsp_sumI_prefix")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function sumR_prefix(own) bind(c, name="bsp_sumR_prefix")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function sumD_prefix(own) bind(c, name="bsp_sumD_prefix")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_product
    integer(c_int) function productI(own) bind(c, name="bsp_productI")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function productR(own) bind(c, name="bsp_productR")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function productD(own) bind(c, name="bsp_productD")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_product_prefix
    integer(c_int) function productI_prefix(own) bind(c, name="bsp_productI_prefix")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function productR_prefix(own) bind(c, name="bsp_productR_prefix")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function productD_prefix(own) bind(c, name="bsp_productD_prefix")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_min
    integer(c_int) function minI(own) bind(c, name="bsp_minI")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function minR(own) bind(c, name="bsp_minR")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function minD(own) bind(c, name="bsp_minD")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_min_prefix
    integer(c_int) function minI_prefix(own) bind(c, name="bsp_minI_prefix")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function minR_prefix(own) bind(c, name="bsp_minR_prefix")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function minD_prefix(own) bind(c, name="bsp_minD_prefix")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_max
    integer(c_int) function maxI(own) bind(c, name="bsp_maxI")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function maxR(own) bind(c, name="bsp_maxR")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function maxD(own) bind(c, name="bsp_maxD")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface

  interface bsp_max_prefix
    integer(c_int) function maxI_prefix(own) bind(c, name="bsp_maxI_prefix")
      import :: c_int
      integer(c_int), value :: own
    end function
    real(c_float) function maxR_prefix(own) bind(c, name="bsp_maxR_prefix")
      import :: c_float
      real(c_float), value :: own
    end function
    real(c_double) function maxD_prefix(own) bind(c, name="bsp_maxD_prefix")
      import :: c_double
      real(c_double), value :: own
    end function
  end interface
contains

  ! Names the subroutine that is the parallel part. It must have bind(c) and no arguments.
  subroutine bsp_init(spmd)
    interface
      subroutine spmd() bind(c)
      end subroutine
    end interface
    call init(c_funloc(spmd), 0_c_int, c_null_ptr)
  end subroutine

  ! Ends the program on all processes with a message.
  subroutine bsp_abort(text)
    character(len=*), intent(in) :: text
    call abort_text(trim(text) // c_null_char)
  end subroutine

  ! True if the value is true on all processes.
  logical function bsp_all(own)
    logical, intent(in) :: own
    bsp_all = c_all(merge(1_c_int, 0_c_int, own)) /= 0
  end function

  ! True if all processes give the same value.
  logical function bsp_constant(own)
    integer(c_int), intent(in) :: own
    bsp_constant = c_constant(own) /= 0
  end function

  ! True if the value is true on any process.
  logical function bsp_any(own)
    logical, intent(in) :: own
    bsp_any = c_any(merge(1_c_int, 0_c_int, own)) /= 0
  end function

end module
