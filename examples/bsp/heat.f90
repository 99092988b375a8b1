! Heat in a rod, with the explicit method: each process has a piece of the rod and puts the values at
! its ends into the ghost cells of its neighbours.
!
!     heat: 200 cells, 300 steps, 75.731556 in the middle
program heat
  use bsp
  implicit none

  integer, parameter :: cells = 200, steps = 300
  real(c_double), parameter :: rate = 0.25d0
  real(c_double), allocatable, target :: rod(:)
  real(c_double) :: whole(0:cells + 1), middle
  integer :: p, me, first, last, step, width

  call bsp_begin(bsp_nprocs())
  p = bsp_nprocs()
  me = bsp_pid()
  width = storage_size(middle) / 8
  first = cells * me / p + 1
  last = cells * (me + 1) / p

  allocate(rod(first - 1:last + 1))
  call bsp_push_reg(c_loc(rod), size(rod) * width)
  rod = initial(first - 1, last + 1)
  call bsp_sync()

  do step = 1, steps
    ! The neighbours' cells next to this piece.
    if (me > 0) call bsp_put(me - 1, c_loc(rod(first)), c_loc(rod), &
      (first - cells * (me - 1) / p) * width, width)
    if (me < p - 1) call bsp_put(me + 1, c_loc(rod(last)), c_loc(rod), 0, width)
    call bsp_sync()
    rod(first:last) = rod(first:last) &
      + rate * (rod(first - 1:last - 1) - 2 * rod(first:last) + rod(first + 1:last + 1))
  end do

  whole = initial(0, cells + 1)
  do step = 1, steps
    whole(1:cells) = whole(1:cells) &
      + rate * (whole(0:cells - 1) - 2 * whole(1:cells) + whole(2:cells + 1))
  end do
  if (any(abs(rod(first:last) - whole(first:last)) > 1d-9)) call bsp_abort("the rod is wrong")

  middle = 0
  if (first <= cells / 2 .and. cells / 2 <= last) middle = rod(cells / 2)
  middle = bsp_sum(middle)
  if (me == 0) print '(a, i0, a, i0, a, f0.6, a)', "heat: ", cells, " cells, ", steps, &
    " steps, ", middle, " in the middle"
  call bsp_end()

contains

  ! Cold ends and a hot spot.
  function initial(from, to) result(values)
    integer, intent(in) :: from, to
    real(c_double) :: values(from:to)
    integer :: i
    values = 0
    do i = max(from, 90), min(to, 120)
      values(i) = 100
    end do
  end function

end program
