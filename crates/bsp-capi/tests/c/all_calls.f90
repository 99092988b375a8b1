! Calls every subroutine and function of the module.
!
!     all_calls: as expected
module parts
  use bsp
  implicit none
  integer :: wanted = -1
contains

  subroutine require(is_so, what)
    logical, intent(in) :: is_so
    character(len=*), intent(in) :: what
    if (.not. is_so) call bsp_abort(what)
  end subroutine

  subroutine add(res, left, right, nbytes) bind(c)
    integer(c_int), intent(out) :: res
    integer(c_int), intent(in) :: left, right, nbytes
    res = left + right + nbytes - 4
  end subroutine

  subroutine spmd() bind(c)
    integer :: p, me, right, left, i, status, count
    integer(c_size_t) :: long
    integer(c_int), target :: own, other, tag, got
    integer(c_int), allocatable, target :: many(:), all(:)
    integer(c_int), pointer :: found
    type(c_ptr) :: at_tag, at_payload
    double precision :: before

    call bsp_begin(wanted)
    p = bsp_nprocs()
    me = bsp_pid()
    right = mod(me + 1, p)
    left = mod(me + p - 1, p)
    before = bsp_time()
    allocate(many(p), all(p))
    own = me
    other = -1
    got = -1

    call bsp_push_reg(c_loc(other), 4)
    call bsp_push_reg(c_loc(own), 4_c_size_t)
    call bsp_sync()
    call bsp_put(right, c_loc(own), c_loc(other), 0, 4)
    call bsp_get(right, c_loc(own), 0, c_loc(got), 4)
    call bsp_sync()
    call require(other == left .and. got == right, "put and get")
    call bsp_hpput(right, c_loc(own), c_loc(other), 0_c_size_t, 4_c_size_t)
    call bsp_hpget(left, c_loc(own), 0_c_size_t, c_loc(got), 4_c_size_t)
    call bsp_sync()
    call require(other == left .and. got == left, "hpput and hpget")
    call bsp_direct_get(me, c_loc(own), 0, c_loc(got), 4)
    call bsp_direct_get(me, c_loc(own), 0_c_size_t, c_loc(got), 4_c_size_t)
    call require(got == me, "direct_get")
    call bsp_pop_reg(c_loc(own))
    call bsp_pop_reg(c_loc(other))

    i = 4
    call bsp_set_tagsize(i)
    call require(i == 0, "the size of tags before")
    call bsp_sync()
    tag = 10 * me
    call bsp_send(right, c_loc(tag), c_loc(own), 4)
    call bsp_hpsend(right, c_loc(tag), c_loc(own), 4_c_size_t)
    call bsp_sync()
    call bsp_qsize(count, i)
    call require(count == 2 .and. i == 8, "the size of the queue")
    long = 0
    call bsp_qsize(count, long)
    call require(count == 2 .and. long == 8, "the size of the queue, long")
    call bsp_get_tag(status, c_loc(got))
    call require(status == 4 .and. got == 10 * left, "the tag")
    call bsp_move(c_loc(got), 4)
    call require(got == left, "the payload")
    call require(bsp_hpmove(at_tag, at_payload) == 4, "the length")
    call c_f_pointer(at_payload, found)
    call require(found == left, "the payload in its place")
    call require(bsp_hpmove(at_tag, at_payload) == -1, "an empty queue")

    call bsp_bcast(p - 1, c_loc(own), c_loc(got), 4)
    call require(got == p - 1, "bcast")
    call bsp_allgather(c_loc(own), c_loc(all), 4)
    call require(all(p) == p - 1 .and. all(1) == 0, "allgather")
    many = [(me * p + i, i = 0, p - 1)]
    call bsp_total_exchange(c_loc(many), c_loc(all), 4)
    call require(all(p) == (p - 1) * p + me, "total exchange")
    call bsp_gather(0, c_loc(own), c_loc(all), 4)
    call require(me > 0 .or. all(p) == p - 1, "gather")
    call bsp_scatter(0, c_loc(many), c_loc(got), 4)
    call require(got == me, "scatter")
    call bsp_fold(c_funloc(add), c_loc(own), c_loc(got), 4)
    call require(got == p * (p - 1) / 2, "fold")
    call bsp_scan(c_funloc(add), c_loc(own), c_loc(got), 4)
    call require(got == me * (me + 1) / 2, "scan")
    call bsp_reduce(0, c_funloc(add), c_loc(own), c_loc(got), 4)
    call require(me > 0 .or. got == p * (p - 1) / 2, "reduce")

    call require(bsp_sum(1) == p, "sum")
    call require(bsp_sum_prefix(1) == me + 1, "sum")
    call require(bsp_sum(0.5) == 0.5 * p, "sum of reals")
    call require(bsp_product(2d0) == 2d0**p, "product")
    call require(bsp_product_prefix(2) == 2**(me + 1), "product")
    call require(bsp_min(me) == 0, "min and max")
    call require(bsp_max(1d0 * me) == p - 1, "min and max")
    call require(bsp_min_prefix(-me) == -me, "prefixes")
    call require(bsp_max_prefix(-1.0 * me) == 0, "prefixes")
    call require(bsp_any(me == p - 1), "any and all")
    call require(.not. bsp_all(me > 0), "any and all")
    call require(bsp_constant(7), "constant")
    call require(bsp_constant(me) .eqv. p == 1, "constant")
    call require(bsp_sort(p - me) == me + 1, "sort")
    call require(bsp_sort(-1d0 * me) == me - p + 1, "sort")
    call require(bsp_sort(-1.0 * me) == me - p + 1, "sort")
    call require(min(bsp_s(), bsp_l(), bsp_g(), 1d0 * bsp_nhalf()) >= -1, "parameters")
    call require(bsp_time() >= before, "clocks")
    call require(bsp_cputime() >= 0, "clocks")
    call require(bsp_dtime() >= 0, "laps")
    call bsp_sync()
    if (me == 0) print '(a)', "all_calls: as expected"
    call bsp_end()
  end subroutine
end module

program all_calls
  use parts
  implicit none
  call bsp_init(spmd)
  wanted = bsp_nprocs()
  call spmd()
end program
